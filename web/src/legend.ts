// The legend: what colours mean, and what is shown.

import type { App } from './app';
import type { Category } from './colours';
import { MINE } from './dataset';
import { byId, make } from './dom';
import { gradient, looksOf, RAMPS, SCHEMES } from './palettes';
import { middleOf } from './scale';
import { NO_COLOUR } from './slots';
import { shortNumber } from './texts';

/** More categories than this are not listed at once, and from so many on there is a field to find one in. */
const LISTED_MAX = 200;
const FIELD_FROM = 25;

export class Legend {
  private readonly colour = byId<HTMLSelectElement>('colour');
  private readonly scheme = byId<HTMLSelectElement>('scheme');
  private readonly list = byId('categories');
  private readonly query = byId<HTMLInputElement>('category-query');
  private readonly counts = new Map<number, HTMLElement>();
  private shown = '';
  /** Of which grouping some points have no category, as far as is known. */
  private lacking: string | undefined;

  /** Changes a category, where that can be saved. */
  edit: ((category: Category) => void) | undefined;

  constructor(private readonly app: App) {
    this.colour.onchange = () => app.colourBy(this.colour.value);
    this.scheme.onchange = () => app.setScheme(this.scheme.value);
    this.query.oninput = () => this.fillList();
    const [size, opacity] = [byId<HTMLInputElement>('size'), byId<HTMLInputElement>('opacity')];
    size.oninput = () => app.setLook(Number(size.value), app.opacity);
    opacity.oninput = () => app.setLook(app.size, Number(opacity.value));
  }

  /** Shows what there is now; does nothing if that is as before. */
  update(): void {
    const { app } = this;
    byId<HTMLInputElement>('size').value = String(app.size);
    byId<HTMLInputElement>('opacity').value = String(app.opacity);
    const names = [...app.dataset.groupings.keys(), ...app.valueNames()];
    const { scale } = app.colours;
    const now = JSON.stringify([names, app.colouring, scale, app.scheme, app.categories(), this.edit !== undefined]);
    if (now === this.shown) return;
    this.shown = now;
    const chosen = app.colouring.kind === 'plain' ? '' : app.colouring.name;
    this.colour.replaceChildren(
      ...[...names, ''].map((name) => new Option(name || 'nothing', name, false, name === chosen)),
    );
    const schemes = app.colouring.kind === 'value' ? RAMPS : SCHEMES;
    this.scheme.replaceChildren(
      ...[...schemes.keys()].map((name) => new Option(name, name, false, name === app.scheme)),
    );
    byId('scheme-row').hidden = app.colouring.kind === 'plain';
    byId('ramp').hidden = app.colouring.kind !== 'value';
    if (app.colouring.kind === 'value') {
      byId('ramp-bar').style.background = gradient(RAMPS.get(app.scheme) ?? []);
      const [below, above] = [scale.least < scale.low, scale.most > scale.high];
      byId('ramp-low').textContent = `${below ? '≤ ' : ''}${shortNumber(scale.low)}`;
      byId('ramp-middle').textContent = shortNumber(middleOf(scale));
      byId('ramp-high').textContent = `${above ? '≥ ' : ''}${shortNumber(scale.high)}`;
      const range = below || above ? [`Values go from ${shortNumber(scale.least)} to ${shortNumber(scale.most)}.`] : [];
      byId('ramp-note').textContent = [...range, ...(scale.log ? ['The scale is logarithmic.'] : [])].join(' ');
    }
    this.fillList();
  }

  private fillList(): void {
    const { app } = this;
    const all = app.categories();
    this.query.hidden = all.length < FIELD_FROM;
    const wanted = this.query.hidden ? '' : this.query.value.trim().toLowerCase();
    const categories = all.filter(({ title }) => title.toLowerCase().includes(wanted));
    this.counts.clear();
    const items = categories.slice(0, LISTED_MAX).map((category) => {
      const { name, title, colour, shape, shown, code } = category;
      const count = make('span', { class: 'count', title: 'points in this frame' });
      this.counts.set(code, count);
      const show = make(
        'button',
        { class: 'show', title: `Show or hide ${title}`, onclick: () => app.show(name, !shown) },
        make('span', { class: `swatch ${shape}`, style: shown ? `background: ${colour}` : '' }),
        make('span', { text: title }),
        count,
      );
      show.setAttribute('aria-pressed', String(shown));
      const only = make('button', {
        class: 'small',
        text: 'only',
        title: `Show only ${title}, or all`,
        onclick: () => app.isolate(name),
      });
      const item = make('li', { class: shown ? '' : 'off' }, show, only);
      item.hidden = code >= NO_COLOUR && this.lacking !== this.colour.value;
      const { edit } = this;
      if (edit !== undefined && code < NO_COLOUR)
        item.append(
          make('button', { class: 'small', text: 'edit', title: `Edit ${title}`, onclick: () => edit(category) }),
        );
      if (app.colouring.kind === 'grouping' && app.colouring.name === MINE && code < app.dataset.selections.length)
        item.append(
          make('button', {
            class: 'small',
            text: 'delete',
            title: `Delete the group ${name}`,
            onclick: () => void this.remove(name),
          }),
        );
      return item;
    });
    if (categories.length > LISTED_MAX)
      items.push(make('li', { class: 'rest', text: `and ${categories.length - LISTED_MAX} more: find them above` }));
    const looks = looksOf(app.scheme);
    // The last is that of points of no category.
    if (all.length - 1 > looks)
      items.push(make('li', { class: 'rest', text: `Looks repeat: this scheme tells ${looks} groups apart.` }));
    // Who goes through the list by keys goes on from the button that was pressed.
    const focused = document.activeElement;
    const title = focused instanceof HTMLElement && this.list.contains(focused) ? focused.title : undefined;
    this.list.replaceChildren(...items);
    if (title !== undefined) [...this.list.querySelectorAll('button')].find((found) => found.title === title)?.focus();
  }

  /** How many points of each category there are in the frame that is shown; undefined where that is not known yet. */
  count(counts: ReadonlyMap<number, number> | undefined): void {
    for (const [code, element] of this.counts) {
      if (counts === undefined) {
        element.textContent = '';
        continue;
      }
      const count = counts.get(code) ?? 0;
      element.textContent = count.toLocaleString('en');
      // Points of no category are the exception; without any, their line is clutter. It is not there until it is known to be needed:
      // on a phone, where the list stands on the timeline, all above it would move away from under the finger.
      if (code >= NO_COLOUR) {
        this.lacking = count === 0 ? undefined : this.colour.value;
        (element.closest('li') as HTMLElement).hidden = count === 0;
      }
    }
  }

  private async remove(name: string): Promise<void> {
    if (await this.app.groups.remove(name)) this.app.colourBy(MINE);
  }
}
