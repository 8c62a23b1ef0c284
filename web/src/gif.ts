// Records what is seen as an animated GIF; colours are counted and packed in a worker, so that the page stays live.

import { combined } from './export';
// Within the script: a page that is a file can load no other.
import GifWorker from './gif-worker?worker&inline';

/** Pictures per second, longest side in pixels, and longest time. */
const RATE = 10;
const SIDE_MAX = 640;
export const SECONDS_MAX = 60;

export type GifPicture = { kind: 'picture'; pixels: ArrayBuffer; width: number; height: number; delayMs: number };
export type ToWorker = GifPicture | { kind: 'end' };

export class GifRecorder {
  private worker: Worker | undefined;
  private timer: ReturnType<typeof setInterval> | undefined;
  private begun = 0;

  constructor(private readonly layers: readonly HTMLCanvasElement[]) {}

  get recording(): boolean {
    return this.timer !== undefined;
  }

  /** Records until `stop`, or for as long as may be; then hands over the file. */
  start(done: (file: Blob) => void, wrong: (reason: string) => void): void {
    const worker = new GifWorker();
    worker.onmessage = ({ data }: MessageEvent<ArrayBuffer>) => {
      worker.terminate();
      done(new Blob([data], { type: 'image/gif' }));
    };
    worker.onerror = (event) => {
      this.stop();
      worker.terminate();
      wrong(`the GIF cannot be made: ${event.message || 'its worker did not start'}`);
    };
    this.worker = worker;
    this.begun = performance.now();
    const canvas = document.createElement('canvas');
    // Who asks for it first says that it will be read.
    const context = canvas.getContext('2d', { willReadFrequently: true });
    let last = this.begun - 1000 / RATE;
    const take = () => {
      const now = performance.now();
      const scale = Math.min(1, SIDE_MAX / Math.max(this.layers[0].width, this.layers[0].height));
      if (context === null) return;
      combined(this.layers, canvas, scale);
      const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
      const picture: GifPicture = {
        kind: 'picture',
        pixels: data.buffer as ArrayBuffer,
        width: canvas.width,
        height: canvas.height,
        delayMs: now - last,
      };
      last = now;
      worker.postMessage(picture satisfies ToWorker, [picture.pixels]);
      if (now - this.begun > 1000 * SECONDS_MAX) this.stop();
    };
    take();
    this.timer = setInterval(take, 1000 / RATE);
  }

  stop(): void {
    if (this.timer === undefined) return;
    clearInterval(this.timer);
    this.timer = undefined;
    this.worker?.postMessage({ kind: 'end' } satisfies ToWorker);
  }
}
