import { createHash } from "node:crypto";
import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join, relative, sep } from "node:path";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

const root = import.meta.dirname;
const built = join(root, "../src/keel/studio/static");
const manifest = "sources.json";
/** Everything that the build depends on. */
const sources = ["index.html", "package-lock.json", "package.json", "public", "src", "svelte.config.js", "tsconfig.json", "vite.config.ts"];

/** The SHA-256 of all files under some paths of a folder, by their path. */
function hashes(folder: string, paths: readonly string[]): Record<string, string> {
  const found: Record<string, string> = {};
  for (const path of paths.map((each) => join(folder, each)).sort()) {
    if (statSync(path).isDirectory()) Object.assign(found, hashes(folder, readdirSync(path).map((name) => join(relative(folder, path), name))));
    else found[relative(folder, path).split(sep).join("/")] = createHash("sha256").update(readFileSync(path)).digest("hex");
  }
  return found;
}

/** Writes the manifest by which tests/studio/test_build.py checks that the built files match their sources. */
function writeManifest(): Plugin {
  return {
    name: "manifest",
    apply: "build",
    closeBundle() {
      const names = readdirSync(built).filter((name) => name !== manifest);
      const content = { sources: hashes(root, sources), built: hashes(built, names) };
      writeFileSync(join(built, manifest), JSON.stringify(content, null, 1) + "\n");
    },
  };
}

export default defineConfig({
  plugins: [svelte(), writeManifest()],
  resolve: { alias: { $lib: join(root, "src/lib"), $components: join(root, "src/components") } },
  build: {
    outDir: built,
    emptyOutDir: true,
    target: "es2022",
    // Browsers with light-dark(): rewritten for older ones, it would not follow the theme of exported figures.
    cssTarget: ["chrome123", "firefox120", "safari17.5"],
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        entryFileNames: "assets/app.js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: (asset) => (asset.names[0] === "index.css" ? "assets/app.css" : "assets/[name][extname]"),
      },
    },
  },
  server: { proxy: { "/api": "http://127.0.0.1:8411", "/reports": "http://127.0.0.1:8411" } },
});
