// The clock: which two frames are shown, and how far between them. Pure: time comes in as an argument.

export type Playback = {
  /** Frame 2.25 is a quarter of the way from frame 2 to frame 3. */
  position: number;
  playing: boolean;
  framesPerS: number;
  loop: boolean;
};

export const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16, 30] as const;

/** Goes on by `seconds`, but not beyond frame `ready`, the last one that has arrived. */
export function advance(playback: Playback, seconds: number, frames: number, ready: number): Playback {
  if (!playback.playing || frames === 0) return playback;
  const last = frames - 1;
  // After a tab was in the background, the clock must not jump.
  const next = playback.position + playback.framesPerS * Math.min(seconds, 0.25);
  if (next < last) return { ...playback, position: Math.max(playback.position, Math.min(next, ready)) };
  if (ready < last) return { ...playback, position: Math.max(playback.position, ready) };
  if (playback.loop && playback.position >= last && last > 0) return { ...playback, position: 0 };
  return { ...playback, position: last, playing: playback.loop && last > 0 };
}

/** Starts or stops; at the end it starts anew. */
export function toggle(playback: Playback, frames: number): Playback {
  const ended = playback.position >= frames - 1;
  return {
    ...playback,
    playing: !playback.playing && frames > 1,
    position: !playback.playing && ended ? 0 : playback.position,
  };
}

/** Goes to a frame, or by some frames, within those that there are. */
export function seek(playback: Playback, position: number, frames: number): Playback {
  return { ...playback, position: Math.min(Math.max(0, position), Math.max(0, frames - 1)) };
}

/** More frames have come: who was looking at the last one is taken to the new one, at once if motion is not wanted. */
export function grown(playback: Playback, before: number, frames: number, calm: boolean): Playback {
  const atEnd = before > 0 && playback.position >= before - 1;
  if (!atEnd || frames <= before) return playback;
  return calm ? { ...playback, position: frames - 1 } : { ...playback, playing: true };
}

export function faster(playback: Playback, steps: number): Playback {
  const at = SPEEDS.findIndex((speed) => speed >= playback.framesPerS);
  const next = Math.min(SPEEDS.length - 1, Math.max(0, (at < 0 ? SPEEDS.length - 1 : at) + steps));
  return { ...playback, framesPerS: SPEEDS[next] };
}

/** The frames to fetch next: the two that are shown, then those that play will come to. */
export function wanted(position: number, frames: number, ahead: number): number[] {
  const first = Math.floor(position);
  const list: number[] = [];
  for (let frame = first; frame < frames && frame <= first + 1 + ahead; frame++) list.push(frame);
  return list;
}
