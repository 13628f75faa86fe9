"""Reports as self-contained HTML files: no network, no scripts."""
