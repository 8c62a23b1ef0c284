import { defineConfig } from 'vitest/config';

const STATIC = '../python/tidemill/viz/static';

// `--mode standalone` builds the viewer once more as one script, for pages that are files (python/tidemill/viz/_export.py).
export default defineConfig(({ mode }) => ({
  // Longer than any test takes on the slowest machine; only a hang gets there.
  test: { testTimeout: 60_000 },
  build: {
    outDir: mode === 'standalone' ? `${STATIC}/standalone` : STATIC,
    emptyOutDir: true,
    // three.js alone is more than what Vite warns of.
    chunkSizeWarningLimit: 1000,
    modulePreload: mode !== 'standalone',
    // The viewer, and the list of a library.
    rolldownOptions: { input: mode === 'standalone' ? ['index.html'] : ['index.html', 'library.html'] },
    copyPublicDir: mode !== 'standalone',
    license: { fileName: 'licences.md' },
  },
}));
