import { defineConfig } from 'vite';

export default defineConfig({
  build: {
    outDir: '../python/tidemill/viz/static',
    emptyOutDir: true,
    // three.js alone is more than what Vite warns of.
    chunkSizeWarningLimit: 1000,
    // The viewer, and the list of a library.
    rolldownOptions: { input: ['index.html', 'library.html'] },
    license: { fileName: 'licences.md' },
  },
});
