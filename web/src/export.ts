// Pictures and videos of what is seen: points, and what is drawn over them.

import { download } from './dom';

/** Draws all layers onto one canvas, which gets their size times `scale`. */
export function combined(layers: readonly HTMLCanvasElement[], to: HTMLCanvasElement, scale = 1): void {
  const [width, height] = [layers[0].width, layers[0].height].map((side) => Math.max(1, Math.round(side * scale)));
  if (to.width !== width || to.height !== height) [to.width, to.height] = [width, height];
  const context = to.getContext('2d');
  for (const layer of layers) context?.drawImage(layer, 0, 0, width, height);
}

export function savePicture(layers: readonly HTMLCanvasElement[], name: string): void {
  const canvas = document.createElement('canvas');
  combined(layers, canvas);
  canvas.toBlob((blob) => {
    if (blob !== null) download(blob, `${name}.png`);
  }, 'image/png');
}

/** Records from `start` to `stop`, which offers the file. */
export class Recorder {
  private recorder: MediaRecorder | undefined;
  private drawing = 0;

  constructor(private readonly layers: readonly HTMLCanvasElement[]) {}

  get recording(): boolean {
    return this.recorder !== undefined;
  }

  /** False where the browser cannot record. */
  start(name: string): boolean {
    const kind = ['video/webm;codecs=vp9', 'video/webm', 'video/mp4'].find(
      (type) => typeof MediaRecorder !== 'undefined' && MediaRecorder.isTypeSupported(type),
    );
    if (kind === undefined) return false;
    const canvas = document.createElement('canvas');
    const draw = () => {
      combined(this.layers, canvas);
      this.drawing = requestAnimationFrame(draw);
    };
    draw();
    const recorder = new MediaRecorder(canvas.captureStream(30), { mimeType: kind, videoBitsPerSecond: 12_000_000 });
    const parts: Blob[] = [];
    recorder.ondataavailable = ({ data }) => void parts.push(data);
    recorder.onstop = () =>
      download(new Blob(parts, { type: kind }), `${name}.${kind.includes('mp4') ? 'mp4' : 'webm'}`);
    recorder.start(1000);
    this.recorder = recorder;
    return true;
  }

  stop(): void {
    cancelAnimationFrame(this.drawing);
    this.recorder?.stop();
    this.recorder = undefined;
  }
}
