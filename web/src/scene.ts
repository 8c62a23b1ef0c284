// Draws the points: two frames in the graphics card, which goes between them by itself.

import {
  BufferAttribute,
  BufferGeometry,
  Color,
  DataTexture,
  DynamicDrawUsage,
  GLSL3,
  LineBasicMaterial,
  LineSegments,
  Matrix4,
  PerspectiveCamera,
  Points,
  RGBAFormat,
  Scene,
  ShaderMaterial,
  Spherical,
  UnsignedByteType,
  Vector3,
  WebGLRenderer,
} from 'three';
import { OrbitControls } from 'three/addons/controls/OrbitControls.js';
import type { Part } from './detail';
import { calm } from './dom';
import { type Canvas, distanceIn, EDGE_PX, fit, type Margins } from './fit';
import type { Between, Screen } from './pick';
import { ABSENT } from './slots';
import { STEPS } from './wire';

const PALETTE_SIDE = 256;

const VERTEX = `
in vec4 a16; in vec4 b16;
uniform vec3 lowA, stepA, lowB, stepB;
uniform float t, size, opacity; uniform bool blend;
uniform sampler2D palette;
out vec4 shade; flat out int shape;
void main() {
  // Fractions of 65535: cards know these, while numbers as they are would be turned into floats before they get there.
  vec4 a = a16 * 65535.0, b = b16 * 65535.0;
  a.w = floor(a.w + 0.5); b.w = floor(b.w + 0.5);
  bool hereA = a.w < ${ABSENT}.0, hereB = b.w < ${ABSENT}.0;
  vec3 atA = lowA + a.xyz * stepA, atB = lowB + b.xyz * stepB;
  vec3 at = hereA ? (hereB ? mix(atA, atB, t) : atA) : atB;
  float there = hereA ? (hereB ? 1.0 : 1.0 - t) : (hereB ? t : 0.0);
  float code = hereA && (t < 0.5 || !hereB) ? a.w : b.w;
  if (blend && max(a.w, b.w) < ${ABSENT - 1}.0) code = floor(mix(a.w, b.w, t) + 0.5);
  int texel = int(code);
  vec4 colour = texelFetch(palette, ivec2(texel & 255, texel >> 8), 0);
  if (there <= 0.0 || colour.a == 0.0) { gl_Position = vec4(2.0, 2.0, 2.0, 1.0); gl_PointSize = 1.0; shade = vec4(0.0); shape = 0; return; }
  vec4 seen = modelViewMatrix * vec4(at, 1.0);
  gl_Position = projectionMatrix * seen;
  gl_PointSize = clamp(size * there / max(0.05, -seen.z), 1.0, 64.0);
  shade = vec4(colour.rgb, opacity);
  shape = 255 - int(colour.a * 255.0 + 0.5);
}`;

const FRAGMENT = `
precision mediump float;
in vec4 shade; flat in int shape; out vec4 colour;
// Whether a place, from -1 to 1 both ways, is outside of a shape of palettes.ts; all are about as large as the circle.
bool outside(vec2 at) {
  vec2 far = abs(at);
  if (shape == 1) return max(far.x, far.y) > 0.84;
  if (shape == 2) return far.x + far.y > 1.0;
  if (shape == 3) return at.y > 0.8 || far.x > (at.y + 1.0) * 0.55;
  if (shape == 4) return min(far.x, far.y) > 0.34;
  return dot(at, at) > 1.0;
}
void main() {
  vec2 from = gl_PointCoord * 2.0 - 1.0;
  float r = dot(from, from);
  if (outside(from)) discard;
  // As of a ball that is lit from the upper left.
  float light = 0.82 + 0.24 * (0.5 - 0.35 * from.x - 0.5 * from.y) * (1.0 - r * 0.6);
  colour = vec4(shade.rgb * min(light, 1.15), shade.a);
}`;

export type Box = { low: readonly number[]; high: readonly number[] };

/** From where the box is looked at when nothing else was chosen. */
const DIRECTION = new Vector3(1.95, 1.3, 2.85).normalize();

export class PointScene {
  private readonly renderer: WebGLRenderer;
  private readonly scene = new Scene();
  readonly camera = new PerspectiveCamera(45, 1, 0.01, 100);
  readonly controls: OrbitControls;
  private geometry = new BufferGeometry();
  private readonly material: ShaderMaterial;
  private readonly cloud: Points;
  private readonly frame: LineSegments;
  private readonly lines = new LineSegments(
    new BufferGeometry(),
    new LineBasicMaterial({ color: 0x808890, transparent: true, opacity: 0.75 }),
  );
  private readonly palette: DataTexture;
  readonly colours = new Uint8Array(PALETTE_SIDE * PALETTE_SIDE * 4);
  private readonly shown = new Uint8Array(PALETTE_SIDE * PALETTE_SIDE);
  private arrays: [Uint16Array, Uint16Array] = [new Uint16Array(0), new Uint16Array(0)];
  /** Frames to the world: the longest side of the box that holds all frames is 2 long, and its middle at 0. */
  private centre = [0, 0, 0];
  private scale = 1;
  /** Half sides of the box that holds all frames, in the world. */
  half: readonly number[] = [1, 1, 1];
  private margins: Margins = { top: 0, right: 0, bottom: 0, left: 0 };
  /** Whether nobody has chosen yet from where to look: then the whole box stays in view, whatever panels open. */
  private untouched = true;
  private pointSize = 5;
  width = 1;
  height = 1;

  constructor(
    readonly canvas: HTMLCanvasElement,
    moved: () => void,
  ) {
    // Kept from picture to picture, so that points can be added to what is there.
    this.renderer = new WebGLRenderer({
      canvas,
      antialias: true,
      preserveDrawingBuffer: true,
      powerPreference: 'high-performance',
    });
    this.renderer.autoClear = false;
    this.palette = new DataTexture(this.colours, PALETTE_SIDE, PALETTE_SIDE, RGBAFormat, UnsignedByteType);
    this.material = new ShaderMaterial({
      vertexShader: VERTEX,
      fragmentShader: FRAGMENT,
      glslVersion: GLSL3,
      uniforms: {
        lowA: { value: new Vector3() },
        stepA: { value: new Vector3() },
        lowB: { value: new Vector3() },
        stepB: { value: new Vector3() },
        t: { value: 0 },
        size: { value: 1 },
        opacity: { value: 1 },
        blend: { value: false },
        palette: { value: this.palette },
      },
    });
    this.cloud = new Points(this.geometry, this.material);
    this.cloud.frustumCulled = false;
    this.frame = new LineSegments(
      new BufferGeometry(),
      new LineBasicMaterial({ color: 0x808890, transparent: true, opacity: 0.35 }),
    );
    this.lines.frustumCulled = false;
    this.scene.add(this.frame, this.lines, this.cloud);
    this.controls = new OrbitControls(this.camera, canvas);
    this.controls.enableDamping = !calm();
    this.controls.dampingFactor = 0.12;
    this.controls.minDistance = 0.05;
    this.controls.maxDistance = 30;
    this.controls.addEventListener('change', moved);
    this.controls.addEventListener('start', () => {
      this.untouched = false;
    });
    this.resetCamera();
  }

  /** Makes room for so many points; the two frames must then be filled anew. */
  allocate(points: number): void {
    this.geometry.dispose();
    this.geometry = new BufferGeometry();
    this.arrays = [new Uint16Array(points * 4).fill(ABSENT), new Uint16Array(points * 4).fill(ABSENT)];
    ['a16', 'b16'].forEach((name, i) => {
      const attribute = new BufferAttribute(this.arrays[i], 4, true);
      attribute.setUsage(DynamicDrawUsage);
      this.geometry.setAttribute(name, attribute);
    });
    this.cloud.geometry = this.geometry;
  }

  /** The memory of frame A (0) or B (1), to be filled; `upload` sends it to the graphics card. */
  array(which: 0 | 1): Uint16Array {
    return this.arrays[which];
  }

  /** Sends the first slots to the graphics card. */
  upload(which: 0 | 1, box: Box, slots: number): void {
    const attribute = this.attribute(which);
    attribute.clearUpdateRanges();
    attribute.addUpdateRange(0, slots * 4);
    attribute.needsUpdate = true;
    this.setBox(which, box);
  }

  /** What was frame B is now frame A: nothing is sent again. */
  swap(): void {
    this.arrays = [this.arrays[1], this.arrays[0]];
    const [a, b] = [this.attribute(0), this.attribute(1)];
    this.geometry.setAttribute('a16', b);
    this.geometry.setAttribute('b16', a);
    const { lowA, lowB, stepA, stepB } = this.material.uniforms;
    [lowA.value, lowB.value] = [lowB.value, lowA.value];
    [stepA.value, stepB.value] = [stepB.value, stepA.value];
  }

  setBox(which: 0 | 1, box: Box): void {
    const side = which === 0 ? 'A' : 'B';
    const low = box.low.map((x, i) => (x - this.centre[i]) * this.scale);
    const step = box.high.map((x, i) => ((x - box.low[i]) * this.scale) / STEPS);
    (this.material.uniforms[`low${side}`].value as Vector3).fromArray(low);
    (this.material.uniforms[`step${side}`].value as Vector3).fromArray(step);
  }

  /** Sets the box that the world is scaled to; boxes of frames must then be set anew. */
  setWorld(box: Box): void {
    const sides = box.high.map((x, i) => x - box.low[i]);
    this.centre = sides.map((side, i) => box.low[i] + side / 2);
    // Of points that are all in one place, or as near to that as numbers can tell, the side is none to divide by.
    const scale = 2 / Math.max(...sides);
    this.scale = Number.isFinite(scale) ? scale : 1;
    const h = sides.map((side) => (side * this.scale) / 2);
    this.half = h;
    const corners: number[] = [];
    for (let axis = 0; axis < 3; axis++)
      for (const u of [-1, 1])
        for (const v of [-1, 1])
          for (const w of [-1, 1]) {
            const at = [0, 0, 0];
            at[axis] = w * h[axis];
            at[(axis + 1) % 3] = u * h[(axis + 1) % 3];
            at[(axis + 2) % 3] = v * h[(axis + 2) % 3];
            corners.push(...at);
          }
    this.frame.geometry.dispose();
    this.frame.geometry = new BufferGeometry().setAttribute(
      'position',
      new BufferAttribute(new Float32Array(corners), 3),
    );
  }

  /** Lines to draw: begin and end of each, three numbers each. */
  setLines(places: Float32Array): void {
    const { geometry } = this.lines;
    const attribute = geometry.getAttribute('position') as BufferAttribute | undefined;
    if (attribute === undefined || attribute.array.length < places.length) {
      geometry.dispose();
      this.lines.geometry = new BufferGeometry().setAttribute('position', new BufferAttribute(places.slice(), 3));
    } else {
      attribute.array.set(places);
      attribute.needsUpdate = true;
    }
    this.lines.geometry.setDrawRange(0, places.length / 3);
  }

  toWorld(at: ArrayLike<number>): [number, number, number] {
    return [0, 1, 2].map((i) => (at[i] - this.centre[i]) * this.scale) as [number, number, number];
  }

  /** After `colours` were changed: what has no alpha is hidden. */
  coloursChanged(blend: boolean): void {
    for (let code = 0; code < this.shown.length; code++) this.shown[code] = this.colours[code * 4 + 3] === 0 ? 0 : 1;
    this.palette.needsUpdate = true;
    this.material.uniforms.blend.value = blend;
  }

  setLook(size: number, opacity: number, background: string): void {
    this.pointSize = size;
    this.material.uniforms.opacity.value = opacity;
    // What is seen through would hide what lies behind it, were it written down as the nearest.
    if (this.material.transparent !== opacity < 1) {
      this.material.transparent = opacity < 1;
      this.material.depthWrite = opacity >= 1;
      this.material.needsUpdate = true;
    }
    this.renderer.setClearColor(new Color(background), 1);
    this.resize(this.width, this.height);
  }

  /** How large a point is drawn at this depth: its radius in pixels, as the shader has it. */
  radiusAt(depth: number): number {
    const ratio = Math.min(window.devicePixelRatio, 2);
    return Math.min(64, (this.pointSize * ratio * 3) / Math.max(0.05, depth)) / ratio / 2;
  }

  setBetween(t: number): void {
    this.material.uniforms.t.value = t;
  }

  between(): Between {
    const u = this.material.uniforms;
    const list = (name: string) => (u[name].value as Vector3).toArray();
    return {
      a: this.arrays[0],
      b: this.arrays[1],
      lowA: list('lowA'),
      stepA: list('stepA'),
      lowB: list('lowB'),
      stepB: list('stepB'),
      t: u.t.value,
      shown: this.shown,
      blend: u.blend.value,
    };
  }

  screen(): Screen {
    this.camera.updateMatrixWorld();
    const matrix = new Matrix4().multiplyMatrices(this.camera.projectionMatrix, this.camera.matrixWorldInverse);
    return { matrix: matrix.elements, width: this.width, height: this.height };
  }

  resize(width: number, height: number, margins = this.margins): void {
    const ratio = Math.min(window.devicePixelRatio, 2);
    // Setting a size clears the picture, also if it is the one that there is.
    if (width !== this.width || height !== this.height || ratio !== this.renderer.getPixelRatio()) {
      this.renderer.setPixelRatio(ratio);
      this.renderer.setSize(width, height, false);
    }
    this.width = width;
    this.height = height;
    this.margins = margins;
    this.camera.aspect = width / Math.max(1, height);
    this.material.uniforms.size.value = this.pointSize * ratio * 3;
    if (this.untouched) this.resetCamera();
    else this.placeMiddle();
  }

  /** Puts the middle of what is seen into that of what panels leave free; returns from how far all is seen there. */
  private placeMiddle(): number {
    const { width, height } = this;
    const { margins, far } = fit(this.half, DIRECTION, this.canvasSize(), this.margins);
    const { top, right, bottom, left } = margins;
    this.camera.setViewOffset(width, height, (right - left) / 2, (bottom - top) / 2, width, height);
    return far;
  }

  private canvasSize(): Canvas {
    return { width: this.width, height: this.height, tan: Math.tan((this.camera.fov * Math.PI) / 360) };
  }

  /** Ends the gliding after a drag: what is left of it would move the camera away from where it is put. */
  private stopGliding(): void {
    const { enableDamping } = this.controls;
    this.controls.enableDamping = false;
    this.controls.update();
    this.controls.enableDamping = enableDamping;
  }

  /** Looks at the whole box, as near as it fits between the panels. */
  resetCamera(): void {
    this.stopGliding();
    this.untouched = true;
    this.controls.target.set(0, 0, 0);
    this.camera.position.copy(DIRECTION).multiplyScalar(this.placeMiddle());
    this.controls.update();
  }

  /** Turns the camera around what it looks at, by steps of five degrees. */
  turn(around: number, over: number): void {
    this.untouched = false;
    const away = this.camera.position.clone().sub(this.controls.target);
    const at = new Spherical().setFromVector3(away);
    at.theta += (around * Math.PI) / 36;
    at.phi += (over * Math.PI) / 36;
    at.makeSafe();
    this.camera.position.setFromSpherical(at).add(this.controls.target);
    this.controls.update();
  }

  /** Multiplies the distance of the camera from what it looks at. */
  zoom(factor: number): void {
    this.untouched = false;
    this.camera.position.sub(this.controls.target).multiplyScalar(factor).add(this.controls.target);
    this.controls.update();
  }

  cameraState(): number[] {
    return [...this.camera.position.toArray(), ...this.controls.target.toArray()];
  }

  /**
   * From how far the whole box is seen on this screen, in the direction from which it is looked at: what a view on another screen is
   * measured by. Panels at the sides are left out, as readers open and close them.
   */
  fitDistance(): number {
    const direction = this.camera.position.clone().sub(this.controls.target).normalize();
    const margins = { ...this.margins, left: EDGE_PX, right: EDGE_PX };
    return Math.round(distanceIn(this.half, direction, this.canvasSize(), margins) * 1000) / 1000;
  }

  /** `fit` is the `fitDistance` of the screen that the state is of; without it the camera is as far away as it was there. */
  setCamera(state: readonly number[], fit?: number): void {
    this.stopGliding();
    this.untouched = false;
    this.camera.position.fromArray(state, 0);
    this.controls.target.fromArray(state, 3);
    if (fit !== undefined) this.zoom(this.fitDistance() / fit);
    this.controls.update();
  }

  draw(part: Part): void {
    if (part.clear) this.renderer.clear();
    this.frame.visible = part.clear;
    this.lines.visible = part.clear;
    this.geometry.setDrawRange(part.begin, part.count);
    this.renderer.render(this.scene, this.camera);
  }

  private attribute(which: 0 | 1): BufferAttribute {
    return this.geometry.getAttribute(which === 0 ? 'a16' : 'b16') as BufferAttribute;
  }
}
