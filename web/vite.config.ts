import { defineConfig } from 'vite';

export default defineConfig({
  build: {
    outDir: '../python/tidemill/viz/static',
    emptyOutDir: true,
    // three.js alone is more than what Vite warns of.
    chunkSizeWarningLimit: 1000,
    license: { fileName: 'licences.md' },
  },
});
