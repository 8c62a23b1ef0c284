// Groups that readers make: kept beside the frames, or in a library as part of a version.

import type { Dataset } from './dataset';
import type { Edits } from './edits';
import type { Source } from './loader';
import type { Parsed, Selection } from './wire';

export class Groups {
  constructor(
    private readonly dataset: Dataset,
    private readonly source: Source,
    /** In a library what the version that is shown changes, of which groups are a part. */
    private readonly edits: (() => Edits) | undefined,
    private readonly notice: (text: string) => void,
  ) {}

  /** Takes those that there are; false if they cannot be read. */
  async load(): Promise<boolean> {
    if (this.edits === undefined) return this.take(await this.source.selections());
    return this.take(listed(this.edits().groups));
  }

  /** Adds a group, or replaces its rows; false if it could not be kept. */
  async save(name: string, rows: readonly number[]): Promise<boolean> {
    if (this.edits === undefined) return this.take(await this.source.saveGroup(name, rows));
    const { groups } = this.edits();
    groups.set(name, rows);
    return this.take(listed(groups));
  }

  async remove(name: string): Promise<boolean> {
    if (this.edits === undefined) return this.take(await this.source.removeGroup(name));
    const { groups } = this.edits();
    groups.delete(name);
    return this.take(listed(groups));
  }

  private take(groups: Parsed<readonly Selection[]>): boolean {
    if (groups.ok) this.dataset.takeSelections(groups.value);
    else this.notice(groups.reason);
    return groups.ok;
  }
}

/** The name if none has it, else with the first number behind it that makes it another: `mine 2`. */
export function freeName(name: string, taken: readonly string[], most: number): string {
  let free = name;
  for (let number = 2; taken.includes(free); number++)
    free = `${name.slice(0, most - String(number).length - 1).trimEnd()} ${number}`;
  return free;
}

/** A map from names to rows as a list; a group that is replaced keeps its place. */
export function listed(groups: ReadonlyMap<string, readonly number[]>): Parsed<Selection[]> {
  return { ok: true, value: [...groups].map(([name, rows]) => ({ name, rows })) };
}
