/** Light or dark: as the system has it, until the user chooses. */

const STORED = "keel-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

class Theme {
  #chosen = $state(localStorage.getItem(STORED));
  #system = $state(system.matches);
  readonly dark = $derived(this.#chosen ? this.#chosen === "dark" : this.#system);

  constructor() {
    system.addEventListener("change", (event) => (this.#system = event.matches));
    this.#show();
  }

  toggle(): void {
    this.#chosen = this.dark ? "light" : "dark";
    localStorage.setItem(STORED, this.#chosen);
    this.#show();
  }

  #show(): void {
    if (this.#chosen) document.documentElement.dataset["theme"] = this.#chosen;
  }
}

export const theme = new Theme();
