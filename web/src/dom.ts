// Small helpers for elements of the page, and its icons.

/** The element of the page with this id; index.html has all that are asked for. */
export function byId<T extends HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`index.html has no #${id}`);
  return found as T;
}

type Props = { class?: string; title?: string; text?: string; style?: string; onclick?: (event: MouseEvent) => void };

/** A new element. Text is set as text: names from files are never taken for HTML. */
export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (props.class !== undefined) element.className = props.class;
  if (props.title !== undefined) element.title = props.title;
  if (props.text !== undefined) element.textContent = props.text;
  if (props.style !== undefined) element.style.cssText = props.style;
  if (props.onclick !== undefined) element.addEventListener('click', props.onclick as EventListener);
  element.append(...children);
  return element;
}

const ICONS: Record<string, string> = {
  'legend-toggle': 'M4 6h2M4 12h2M4 18h2M10 6h10M10 12h10M10 18h10',
  lasso: 'M7 16c-2-1-4-3-4-6 0-4 4-6 9-6s9 2 9 6-4 6-9 6c-2 0-3-.3-5 0zm0 0a2 2 0 1 0 0 4c2 0 2-2 0-4z',
  reset: 'M4 12a8 8 0 1 0 3-6.2M4 4v4h4',
  heat: 'M4 4h16v16H4zM4 12h16M12 4v16M4 8h8M12 16h8',
  picture: 'M4 8h3l2-3h6l2 3h3v11H4zM12 10a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7z',
  record: 'M4 7h11v10H4zM15 11l5-3v8l-5-3z',
  link: 'M10 14a4 4 0 0 0 6 0l3-3a4 4 0 0 0-6-6l-1 1M14 10a4 4 0 0 0-6 0l-3 3a4 4 0 0 0 6 6l1-1',
  'about-toggle': 'M5 4h11l3 3v13H5zM8 10h8M8 14h8M8 17h5',
  edges: 'M6 18L11 11M11 11L18 14M11 11L9 5M6 18h.01M18 14h.01M9 5h.01',
  gif: 'M3 6h18v12H3zM9.5 10.3a2.2 2.2 0 1 0 0 3.4V12H8M13 10v4M16 14v-4h3M16 12h2.4',
  edit: 'M5 19l1-4L16 5l3 3L9 18z',
  theme: 'M12 4a8 8 0 1 0 8 8 6 6 0 0 1-8-8z',
  help: 'M9 9a3 3 0 1 1 4 3c-1 .5-1 1-1 2M12 17.5v.5',
  loop: 'M17 3l3 3-3 3M20 6H8a4 4 0 0 0-4 4v1M7 21l-3-3 3-3M4 18h12a4 4 0 0 0 4-4v-1',
  play: 'M8 5l11 7-11 7z',
  pause: 'M7 5h3.5v14H7zM13.5 5H17v14h-3.5z',
};

export function setIcon(button: HTMLElement, name: string): void {
  button.innerHTML = `<svg viewBox="0 0 24 24" aria-hidden="true"><path d="${ICONS[name]}"/></svg>`;
  button.setAttribute('aria-label', button.title);
}

let noticed: ReturnType<typeof setTimeout> | undefined;

/** Says something for a while, longer if something is wrong. */
export function notice(text: string, wrong = true): void {
  const box = byId('notice');
  box.textContent = text;
  box.classList.toggle('wrong', wrong);
  box.hidden = false;
  clearTimeout(noticed);
  noticed = setTimeout(() => (box.hidden = true), wrong ? 8000 : 2500);
}

let themeChanged = (): void => {};

/** What its reader has chosen is kept under this name, for all pages of the server. */
const THEME = 'tidemill-theme';

/** Makes the page light or dark, as its reader has chosen or else as the system is, and tells then and from now on when it changes. */
export function startTheme(changed: () => void): void {
  themeChanged = changed;
  const chosen = stored();
  setDark(chosen === null ? matchMedia('(prefers-color-scheme: dark)').matches : chosen === 'dark');
}

/** Makes a light page dark, and a dark one light, also when it is loaded again. */
export function toggleTheme(): void {
  setDark(!isDark());
  try {
    localStorage.setItem(THEME, isDark() ? 'dark' : 'light');
  } catch {
    // Some browsers keep nothing, of files or of private windows: then it is as long as the page is open.
  }
}

function stored(): string | null {
  try {
    return localStorage.getItem(THEME);
  } catch {
    return null;
  }
}

export function isDark(): boolean {
  return document.documentElement.dataset.theme === 'dark';
}

export function setDark(dark: boolean): void {
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  themeChanged();
}

/** Whether its reader wants as little motion as may be. */
export function calm(): boolean {
  return matchMedia('(prefers-reduced-motion: reduce)').matches;
}

/** Offers data as a file to save. */
export function download(blob: Blob, name: string): void {
  const link = make('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
