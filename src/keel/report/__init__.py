"""Reports on the console and as self-contained HTML files: no network; only a map has a script."""
