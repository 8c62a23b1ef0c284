// Beside a plot of a library: what it is, its versions, what was said about it, and links that were given away.

import type { App } from '../app';
import { ask } from '../dialog';
import { byId, make, setIcon } from '../dom';
import { copyOf, diff, diffWithoutView, fold, noEdits } from '../edits';
import { encodeView } from '../link';
import { bad, type Parsed } from '../wire';
import type { LibraryClient, Looks } from './client';
import { author, day, keepAuthor } from './texts';
import type { About, Version } from './wire';

/** Most letters of the name and the note of a version. */
const NAME_MAX = 200;
const NOTE_MAX = 20_000;

type Remove = (number: number) => Promise<Parsed<unknown>>;
const NOBODY = bad('nothing can be changed here');

export class AboutPanel {
  private about: About | undefined;
  /** The version that is shown, and what it changes. */
  private version = 0;
  private base = noEdits();
  /** What the page had made of it before its reader changed anything: a link, or a view, may hide other groups. */
  private opened = noEdits();
  /** Answers about versions that are no longer wanted are left aside. */
  private asked = 0;
  private removeComment: Remove = () => Promise.resolve(NOBODY);
  private withdraw: Remove = () => Promise.resolve(NOBODY);
  private editVersion: (version: Version) => void = () => {};

  constructor(
    private readonly app: App,
    private readonly looks: Looks,
    /** Who keeps what is changed or said; a page that is a file has nobody. */
    client: LibraryClient | undefined,
    private readonly id: string,
    private readonly notice: (text: string, wrong?: boolean) => void,
  ) {
    if (client === undefined) return;
    byId('save-version').onsubmit = (event) => this.submitted(event, () => this.save(client));
    byId('add-comment').onsubmit = (event) => this.submitted(event, () => this.comment(client));
    byId('make-share').onsubmit = (event) => this.submitted(event, () => this.share(client));
    this.removeComment = (number) => client.removeComment(this.id, number);
    this.withdraw = (number) => client.withdraw(this.id, number);
    this.editVersion = (version) => void this.changeVersion(client, version);
    addEventListener('beforeunload', (event) => {
      if (!this.unsaved) return;
      event.preventDefault();
      // Browsers of before 2024 look only at this.
      event.returnValue = true;
    });
    for (const field of document.querySelectorAll<HTMLInputElement>('input.author')) {
      field.value = author();
      field.onchange = () => keepAuthor(field.value);
    }
  }

  get writable(): boolean {
    return this.about?.writable ?? false;
  }

  get title(): string {
    return this.about?.plot.title ?? '';
  }

  /** Loads what there is to know, and shows the version that `wanted` names, else the newest. */
  async start(wanted: number | undefined): Promise<boolean> {
    if (!(await this.refresh())) return false;
    const versions = this.about?.versions ?? [];
    const first = versions.find(({ number }) => number === wanted) ?? versions.at(-1);
    return first === undefined || this.open(first.number);
  }

  /** What is shown now was not changed by the reader: it is what a version, or the link to it, says. */
  unchanged(): void {
    this.opened = copyOf(this.app.colours.currentEdits());
  }

  /** Whether something is lost with what is shown. Where no version can be saved, that is a group that was made. */
  private get unsaved(): boolean {
    const changes = diffWithoutView(this.opened, this.app.colours.currentEdits());
    return changes.some(({ set }) => this.writable || set === 'group');
  }

  private async refresh(): Promise<boolean> {
    const got = await this.looks.about(this.id);
    if (!got.ok) {
      this.notice(got.reason);
      return false;
    }
    this.about = got.value;
    this.show();
    return true;
  }

  /** Shows a version, false if it cannot; asks first if something was changed and not saved, as that is then gone. */
  async open(version: number): Promise<boolean> {
    const mine = ++this.asked;
    const got = await this.looks.changes(this.id, version);
    if (mine !== this.asked) return true;
    if (!got.ok) {
      this.notice(got.reason);
      return false;
    }
    if (this.unsaved && !(await this.mayDrop())) return true;
    this.version = version;
    this.base = fold(got.value);
    await this.app.setEdits(fold(got.value));
    this.unchanged();
    this.show();
    return true;
  }

  private async mayDrop(): Promise<boolean> {
    const answer = await ask(
      'drop-changes',
      'Open it without saving?',
      [],
      [{ name: 'drop', title: 'Drop my changes', look: 'danger' }],
      this.writable
        ? 'Your changes are not in any version yet, and would be lost. “Save version” keeps them.'
        : 'The groups that you have made here would be lost.',
    );
    return answer !== undefined;
  }

  private async save(client: LibraryClient): Promise<boolean> {
    const name = byId<HTMLInputElement>('version-name');
    const note = byId<HTMLTextAreaElement>('version-note');
    const now = copyOf({ ...this.app.colours.currentEdits(), view: encodeView(this.app.view()) });
    const changes = diff(this.base, now);
    const told = { name: name.value.trim(), note: note.value, author: author(), parent: this.version, changes };
    const saved = await client.saveVersion(this.id, told);
    if (!saved.ok) return this.wrong(saved);
    name.value = note.value = '';
    this.notice(`Saved as “${saved.value.name}”.`, false);
    // It is what is shown already. To load it would drop what was changed while it was sent.
    this.version = saved.value.number;
    this.base = this.opened = now;
    return this.refresh();
  }

  /** Asks what a version shall be called, or whether it shall go. */
  private async changeVersion(client: LibraryClient, { number, parent, name, note }: Version): Promise<void> {
    const answer = await ask(
      'edit-version',
      'Version',
      [
        { id: 'new-version-name', label: 'Name', value: name, most: NAME_MAX, required: true },
        { id: 'new-version-note', label: 'Note', value: note, kind: 'lines', most: NOTE_MAX },
      ],
      [
        { name: 'save', title: 'Change', look: 'primary', checks: true },
        { name: 'delete', title: 'Delete', look: 'danger' },
      ],
    );
    if (answer?.choice === 'save') {
      const told = { name: answer.value('new-version-name'), note: answer.value('new-version-note') };
      await this.after(client.updateVersion(this.id, number, told));
    } else if (answer?.choice === 'delete') {
      const removed = await client.removeVersion(this.id, number);
      if (!removed.ok) this.wrong(removed);
      else if (number === this.version) await this.fallBack(parent ?? 0);
      await this.refresh();
    }
  }

  /** The version that is shown is no more. What its reader has changed stays on the page, to be saved over the one that it was built on. */
  private async fallBack(parent: number): Promise<void> {
    if (!this.unsaved) {
      await this.open(parent);
      return;
    }
    const got = await this.looks.changes(this.id, parent);
    if (!got.ok) {
      this.wrong(got);
      return;
    }
    this.version = parent;
    this.base = fold(got.value);
  }

  private async comment(client: LibraryClient): Promise<boolean> {
    const text = byId<HTMLTextAreaElement>('comment-text');
    const said = await client.comment(this.id, { text: text.value, author: author() });
    if (!said.ok) return this.wrong(said);
    text.value = '';
    return this.refresh();
  }

  private async share(client: LibraryClient): Promise<boolean> {
    const name = byId<HTMLInputElement>('share-name');
    const only = byId<HTMLInputElement>('share-only').checked;
    const made = await client.share(this.id, { name: name.value, version: only ? this.version : null });
    if (!made.ok) return this.wrong(made);
    name.value = '';
    const link = `${location.origin}/plots/${this.id}?token=${made.value.token}`;
    const field = byId<HTMLInputElement>('share-link');
    field.value = link;
    byId('shared').hidden = false;
    field.select();
    await this.refresh();
    try {
      await navigator.clipboard.writeText(link);
      this.notice('The link is in the clipboard. It is not shown again.', false);
    } catch {
      this.notice('Copy the link: it is not shown again.', false);
    }
    return true;
  }

  private wrong(got: Parsed<unknown>): false {
    if (!got.ok) this.notice(got.reason);
    return false;
  }

  /** While a form is sent, it cannot be sent again. */
  private submitted(event: SubmitEvent, action: () => Promise<boolean>): void {
    event.preventDefault();
    const button = (event.target as HTMLElement).querySelector<HTMLButtonElement>('button.primary');
    if (button !== null) button.disabled = true;
    void action().finally(() => {
      if (button !== null) button.disabled = false;
    });
  }

  private async after(got: Promise<Parsed<unknown>>): Promise<void> {
    const done = await got;
    if (!done.ok) this.wrong(done);
    else await this.refresh();
  }

  private show(): void {
    const { about } = this;
    if (about === undefined) return;
    const { plot } = about;
    byId('about-text').textContent = plot.description;
    byId('about-text').hidden = plot.description === '';
    const chips = [plot.collection, ...plot.tags].filter((text) => text !== '');
    byId('about-tags').replaceChildren(...chips.map((text) => make('li', { text })));
    byId('versions').replaceChildren(...about.versions.map((version) => this.versionItem(version)));
    byId('comments').replaceChildren(
      ...about.comments.map(({ number, author, text, created }) =>
        make(
          'li',
          {},
          make('p', { text }),
          make('small', { text: `${author || 'somebody'}, ${day(created)}` }),
          this.remover('Delete this comment', () => this.removeComment(number)),
        ),
      ),
    );
    byId('shares').replaceChildren(
      ...about.shares.map(({ number, name, version, created }) =>
        make(
          'li',
          {},
          make('p', { text: name || 'a link' }),
          make('small', { text: `${version === null ? 'all versions' : `version ${version} only`}, ${day(created)}` }),
          this.remover('Withdraw this link', () => this.withdraw(number)),
        ),
      ),
    );
    for (const section of document.querySelectorAll<HTMLElement>('#about .writes')) section.hidden = !about.writable;
    byId('about-comments').hidden = !about.writable;
  }

  private versionItem(version: Version): HTMLElement {
    const { number, name, note, author, created } = version;
    const button = make(
      'button',
      { onclick: () => void this.open(number), title: note || `Show ${name}` },
      make('span', { text: name }),
      make('small', { text: [author, day(created)].filter((text) => text !== '').join(', ') }),
    );
    button.type = 'button';
    button.setAttribute('aria-current', String(number === this.version));
    if (!this.writable || number === 0) return make('li', {}, button);
    const edit = make('button', {
      class: 'edit',
      title: `Edit version ${name}`,
      onclick: () => this.editVersion(version),
    });
    edit.type = 'button';
    setIcon(edit, 'edit');
    return make('li', {}, button, edit);
  }

  private remover(title: string, action: () => Promise<Parsed<unknown>>): HTMLElement {
    const button = make('button', { class: 'remove', title, text: '×', onclick: () => void this.after(action()) });
    button.type = 'button';
    button.setAttribute('aria-label', title);
    return button;
  }
}
