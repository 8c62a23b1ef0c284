// Asks the server of a library.

import { type Change, parseChanges } from '../edits';
import { bad, isRecord, type Parsed } from '../wire';
import {
  type About,
  type Plot,
  parseAbout,
  parsePlot,
  parsePlots,
  parseShare,
  parseSummary,
  parseVersion,
  type Share,
  type Summary,
  type Version,
} from './wire';

/** What it takes to look at the versions of a plot. */
export type Looks = Pick<LibraryClient, 'about' | 'changes'>;

export class LibraryClient {
  constructor(private readonly token: string) {}

  summary(): Promise<Parsed<Summary>> {
    return this.ask('GET', 'library', parseSummary);
  }
  plots(search: string, offset: number): Promise<Parsed<{ plots: Plot[]; total: number }>> {
    return this.ask('GET', `plots?${new URLSearchParams({ search, offset: String(offset) })}`, parsePlots);
  }
  about(id: string): Promise<Parsed<About>> {
    return this.ask('GET', `plots/${id}`, parseAbout);
  }
  update(
    id: string,
    told: Partial<Pick<Plot, 'title' | 'description' | 'tags' | 'collection'>>,
  ): Promise<Parsed<Plot>> {
    return this.ask('PATCH', `plots/${id}`, parsePlot, told);
  }
  remove(id: string): Promise<Parsed<unknown>> {
    return this.ask('DELETE', `plots/${id}`, anything);
  }
  comment(id: string, told: { text: string; author: string }): Promise<Parsed<unknown>> {
    return this.ask('POST', `plots/${id}/comments`, anything, told);
  }
  removeComment(id: string, number: number): Promise<Parsed<unknown>> {
    return this.ask('DELETE', `plots/${id}/comments/${number}`, anything);
  }
  changes(id: string, version: number): Promise<Parsed<Change[]>> {
    return this.ask('GET', `plots/${id}/versions/${version}`, (told) =>
      isRecord(told) ? parseChanges(told.changes) : bad('the server sent no changes'),
    );
  }
  saveVersion(
    id: string,
    told: { name: string; note: string; author: string; parent: number; changes: readonly Change[] },
  ): Promise<Parsed<Version>> {
    return this.ask('POST', `plots/${id}/versions`, parseVersion, told);
  }
  updateVersion(id: string, number: number, told: { name: string; note: string }): Promise<Parsed<Version>> {
    return this.ask('PATCH', `plots/${id}/versions/${number}`, parseVersion, told);
  }
  removeVersion(id: string, number: number): Promise<Parsed<unknown>> {
    return this.ask('DELETE', `plots/${id}/versions/${number}`, anything);
  }
  share(id: string, told: { name: string; version: number | null }): Promise<Parsed<Share>> {
    return this.ask('POST', `plots/${id}/shares`, parseShare, told);
  }
  withdraw(id: string, number: number): Promise<Parsed<unknown>> {
    return this.ask('DELETE', `plots/${id}/shares/${number}`, anything);
  }

  /** Sends a file, and tells how much of it has gone; `fetch` cannot. */
  upload(query: URLSearchParams, data: Blob, progress: (part: number) => void): Promise<Parsed<Plot>> {
    return new Promise((done) => {
      const request = new XMLHttpRequest();
      request.open('POST', `/api/plots?${query}`);
      request.setRequestHeader('Authorization', `Bearer ${this.token}`);
      request.upload.onprogress = ({ loaded, total }) => progress(total > 0 ? loaded / total : 0);
      request.onload = () => done(answered(request.status, request.responseText, parsePlot));
      request.onerror = () => done(bad(GONE));
      request.send(data);
    });
  }

  private async ask<T>(
    method: string,
    path: string,
    parse: (told: unknown) => Parsed<T>,
    told?: unknown,
  ): Promise<Parsed<T>> {
    try {
      const init = { method, headers: { Authorization: `Bearer ${this.token}` } };
      const response = await fetch(`/api/${path}`, told === undefined ? init : { ...init, body: JSON.stringify(told) });
      return answered(response.status, await response.text(), parse);
    } catch {
      return bad(GONE);
    }
  }
}

const GONE = 'the server does not answer; does `tidemill view` still run?';

function anything(told: unknown): Parsed<unknown> {
  return { ok: true, value: told };
}

function answered<T>(status: number, text: string, parse: (told: unknown) => Parsed<T>): Parsed<T> {
  if (status < 200 || status > 299) return bad(text.slice(0, 1000) || `the server answered with ${status}`);
  let told: unknown;
  try {
    told = JSON.parse(text);
  } catch {
    return bad('the server sent no JSON');
  }
  return parse(told);
}
