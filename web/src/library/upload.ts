// The dialog that uploads: one file, or several that become frames of one plot and travel as an archive.

import { zipSync } from 'fflate';
import { byId } from '../dom';
import { count } from '../texts';
import type { LibraryClient } from './client';
import { size } from './texts';
import type { Plot, Summary } from './wire';

export class UploadDialog {
  private readonly dialog = byId<HTMLDialogElement>('upload-dialog');
  private readonly input = byId<HTMLInputElement>('files');
  private files: readonly File[] = [];
  private formats: readonly string[] = [];
  private bytesMax = 0;

  constructor(
    private readonly client: LibraryClient,
    private readonly done: (plot: Plot) => void,
  ) {
    this.input.onchange = () => this.take([...(this.input.files ?? [])]);
    byId('cancel').onclick = () => this.dialog.close();
    byId('upload-form').onsubmit = (event) => {
      event.preventDefault();
      void this.send();
    };
    for (const target of [byId('drop'), document.body]) {
      target.addEventListener('dragover', (event) => event.preventDefault());
      target.addEventListener('drop', (event) => {
        event.preventDefault();
        event.stopPropagation();
        const dropped = [...(event.dataTransfer?.files ?? [])];
        if (dropped.length === 0) return;
        if (!this.dialog.open) this.open();
        this.take(dropped);
      });
    }
  }

  limits(summary: Summary): void {
    [this.formats, this.bytesMax] = [summary.formats, summary.bytesMax];
    this.input.accept = summary.formats.join(',');
    byId('formats').textContent =
      `CSV, Parquet, Arrow, text, JSON or XML of points; several files are frames of one plot. At most ${size(summary.bytesMax)}.`;
  }

  open(): void {
    byId<HTMLFormElement>('upload-form').reset();
    this.take([]);
    this.dialog.showModal();
  }

  private take(files: readonly File[]): void {
    this.files = files;
    const bytes = files.reduce((sum, file) => sum + file.size, 0);
    const what = files.length === 1 ? files[0].name : count(files.length, 'file');
    byId('drop-text').textContent = files.length === 0 ? 'Choose files, or drop them here' : `${what}, ${size(bytes)}`;
    this.wrong(bytes > this.bytesMax && files.length > 0 ? `An upload is at most ${size(this.bytesMax)}.` : '');
  }

  private wrong(text: string): void {
    byId('upload-wrong').textContent = text;
    byId('upload-wrong').hidden = text === '';
  }

  private async send(): Promise<void> {
    const { files } = this;
    if (files.length === 0) {
      this.wrong(`Choose a file: ${this.formats.join(' ')}`);
      return;
    }
    if (files.reduce((sum, file) => sum + file.size, 0) > this.bytesMax) return;
    const field = (name: string) => byId<HTMLInputElement>(name).value;
    const query = new URLSearchParams({
      name: files.length === 1 ? files[0].name : archiveName(files),
      title: field('title'),
      description: field('description'),
      tags: field('new-tags'),
      collection: field('collection'),
    });
    this.busy(true);
    try {
      const progress = byId<HTMLProgressElement>('progress');
      const sent = await this.client.upload(query, await packed(files), (part) => {
        // From then on the server reads the file, which takes as long as it takes.
        if (part < 1) progress.value = part;
        else progress.removeAttribute('value');
      });
      if (sent.ok) {
        this.dialog.close();
        this.done(sent.value);
      } else this.wrong(sent.reason);
    } catch (error) {
      // A file that was removed or changed since it was chosen.
      this.wrong(`The file cannot be read: ${error instanceof Error ? error.message : String(error)}`);
    } finally {
      this.busy(false);
    }
  }

  private busy(busy: boolean): void {
    if (busy) this.wrong('');
    byId<HTMLProgressElement>('progress').value = 0;
    byId('progress').hidden = !busy;
    byId<HTMLButtonElement>('send').disabled = busy;
  }
}

/** An archive is called by its index, else by its first file: that is the title, if there is no other. */
function archiveName(files: readonly File[]): string {
  const names = files.map(({ name }) => name).sort();
  const first = names.find((name) => name.endsWith('.index')) ?? names[0];
  return `${first.replace(/\.[^.]*$/, '')}.zip`;
}

async function packed(files: readonly File[]): Promise<Blob> {
  if (files.length === 1) return files[0];
  const members: Record<string, [Uint8Array, { level: 0 }]> = {};
  for (const file of files) members[file.name] = [new Uint8Array(await file.arrayBuffer()), { level: 0 }];
  return new Blob([zipSync(members) as Uint8Array<ArrayBuffer>]);
}
