// Makes a GIF of pictures as they come.

import { applyPalette, GIFEncoder, quantize } from 'gifenc';
import type { ToWorker } from './gif';

const encoder = GIFEncoder();

self.onmessage = ({ data }: MessageEvent<ToWorker>) => {
  if (data.kind === 'picture') {
    const pixels = new Uint8ClampedArray(data.pixels);
    const palette = quantize(pixels, 256);
    const delay = Math.max(20, Math.round(data.delayMs));
    encoder.writeFrame(applyPalette(pixels, palette), data.width, data.height, { palette, delay });
    return;
  }
  encoder.finish();
  const bytes = encoder.bytes();
  self.postMessage(bytes.buffer, { transfer: [bytes.buffer] });
};
