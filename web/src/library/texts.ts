// Texts of the library's pages: numbers and days as people write them, and who writes.

const AUTHOR = 'tidemill-author';

/** Who comments and saves here, as far as that was said; browsers may forbid to keep it. */
export function author(): string {
  try {
    return localStorage.getItem(AUTHOR) ?? '';
  } catch {
    return '';
  }
}

export function keepAuthor(name: string): void {
  try {
    localStorage.setItem(AUTHOR, name.trim().slice(0, 60));
  } catch {
    // Then it is asked for again the next time.
  }
}

export function day(iso: string): string {
  const at = new Date(iso);
  return Number.isNaN(at.getTime())
    ? iso
    : at.toLocaleDateString('en', { day: 'numeric', month: 'short', year: 'numeric' });
}

export function size(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  const at = Math.min(3, Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 1024 ** at;
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${['B', 'KiB', 'MiB', 'GiB'][at]}`;
}
