//! Draws a graph as a picture, with tasks in layers from left to right, without any other program.
//!
//! Between two layers of tasks is a layer of labels, one for each edge, so that no label overlaps another or a box.
//! An edge that passes layers has a separate place in each of them. An edge that leads back ends in its label.

use std::fmt::Write;

use super::PlacementPlan;
use super::explain::ranges;
use crate::error::GraphErrors;
use crate::flow::CheckedEdge;
use crate::graph::Graph;

const FONT: f32 = 13.0;
const SMALL_FONT: f32 = 11.0;
const LINE: f32 = 16.0;
/// The average width of a letter, relative to the font size.
const LETTER: f32 = 0.58;
const PADDING: f32 = 10.0;
/// The gaps between layers, and between the nodes of a layer.
const GAP_X: f32 = 40.0;
const GAP_Y: f32 = 22.0;
const MARGIN: f32 = 16.0;
const LABEL_LETTERS_MAX: usize = 26;
const SWEEPS: usize = 8;

/// The kinds of nodes in a layer.
enum NodeKind {
    Task(&'static str),
    Label,
    /// An edge that passes through the layer.
    Bend,
}

struct SvgNode {
    kind: NodeKind,
    lines: Vec<String>,
    layer: usize,
    width: f32,
    height: f32,
    /// The position of its center.
    x: f32,
    y: f32,
}

#[derive(Default)]
struct SvgDrawing {
    nodes: Vec<SvgNode>,
    lines: Vec<(usize, usize)>,
    layers: Vec<Vec<usize>>,
}

impl Graph {
    /// The graph as an SVG picture: every task, with the locations of its copies if there is a plan, and every edge
    /// with its exchange.
    ///
    /// # Errors
    /// If the graph cannot run.
    pub fn to_svg(&self, workers: u32, plan: Option<&PlacementPlan>) -> Result<String, GraphErrors> {
        let edges = self.checked(workers)?;
        let mut drawing = SvgDrawing::default();
        for (index, layer) in layers(self.tasks.len(), &edges).into_iter().enumerate() {
            let task = &self.tasks[index];
            let mut lines = vec![task.name.clone()];
            let copies = task.parallelism.copies(workers);
            lines.push(format!("{} x {copies}", self.kind(index)));
            if let Some(plan) = plan {
                lines.push(format!("on workers {}", ranges(plan.workers_of(index))));
                lines.extend(self.sharing(index, plan).iter().flat_map(|sharing| wrapped(sharing)));
            }
            // Labels are in the odd layers.
            drawing.add(NodeKind::Task(self.kind(index)), lines, 2 * layer);
        }
        for (checked, edge) in edges.iter().zip(&self.edges) {
            if checked.feedback {
                let (source, target) = (checked.sources[0].0, &self.tasks[checked.target.0].name);
                let text = format!("↩ {target}: {}", self.label(checked, &edge.exchange.describe()));
                let label = drawing.add(NodeKind::Label, wrapped(&text), drawing.nodes[source].layer + 1);
                drawing.lines.push((source, label));
                continue;
            }
            let layer = drawing.nodes[checked.target.0].layer - 1;
            let label = drawing.add(NodeKind::Label, wrapped(&self.label(checked, &edge.exchange.describe())), layer);
            checked.sources.iter().for_each(|&(source, _)| drawing.connect(source, label));
            drawing.lines.push((label, checked.target.0));
        }
        drawing.arrange();
        Ok(drawing.draw(&self.name))
    }

    /// What the exchange does, preceded by the ports that it connects if there is a choice.
    fn label(&self, edge: &CheckedEdge, exchange: &str) -> String {
        let (target, input) = edge.target;
        let several_out = edge.sources.iter().any(|&(task, _)| self.tasks[task].outputs.len() > 1);
        if !several_out && self.tasks[target].inputs.len() == 1 {
            return exchange.to_owned();
        }
        let outputs: Vec<&str> =
            edge.sources.iter().map(|&(task, port)| self.tasks[task].outputs[port].name.as_str()).collect();
        format!("{} → {}: {exchange}", outputs.join(" + "), self.tasks[target].inputs[input].name)
    }
}

/// The layer of each task: one more than that of the last task it waits for.
fn layers(tasks: usize, edges: &[CheckedEdge]) -> Vec<usize> {
    let mut layers = vec![0; tasks];
    // Without edges that lead back there is no cycle, so no path is longer than the number of tasks.
    for _ in 0..tasks {
        for edge in edges.iter().filter(|edge| !edge.feedback) {
            let last = edge.sources.iter().map(|&(task, _)| layers[task] + 1).max().unwrap_or(0);
            layers[edge.target.0] = layers[edge.target.0].max(last);
        }
    }
    layers
}

/// Breaks the text into short lines.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= LABEL_LETTERS_MAX => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

impl SvgDrawing {
    fn add(&mut self, kind: NodeKind, lines: Vec<String>, layer: usize) -> usize {
        let letters = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0) as f32;
        let (font, padding) = match kind {
            NodeKind::Task(_) => (FONT, PADDING),
            NodeKind::Label => (SMALL_FONT, PADDING / 2.0),
            NodeKind::Bend => (0.0, 0.0),
        };
        let (width, height) = (letters * font * LETTER + 2.0 * padding, lines.len() as f32 * LINE + 2.0 * padding);
        self.nodes.push(SvgNode { kind, lines, layer, width, height, x: 0.0, y: 0.0 });
        self.nodes.len() - 1
    }

    /// Draws a line from `from` to `to`, with a bend in every layer between them.
    fn connect(&mut self, from: usize, to: usize) {
        let mut last = from;
        for layer in self.nodes[from].layer + 1..self.nodes[to].layer {
            let bend = self.add(NodeKind::Bend, Vec::new(), layer);
            self.lines.push((last, bend));
            last = bend;
        }
        self.lines.push((last, to));
    }

    /// Assigns every node its place.
    fn arrange(&mut self) {
        let count = self.nodes.iter().map(|node| node.layer + 1).max().unwrap_or(0);
        self.layers = vec![Vec::new(); count];
        (0..self.nodes.len()).for_each(|node| self.layers[self.nodes[node].layer].push(node));
        for layer in 0..count {
            self.stack(layer, |_| None);
        }
        // In alternating sweeps, every node moves to the middle of its neighbors; first the order settles, then the
        // places.
        for sweep in 0..SWEEPS {
            let order: Vec<usize> = if sweep % 2 == 0 { (0..count).collect() } else { (0..count).rev().collect() };
            for layer in order {
                let wishes: Vec<Option<f32>> = (0..self.nodes.len()).map(|node| self.middle(node, layer)).collect();
                if sweep < SWEEPS / 2 {
                    let wish = |node: &usize| wishes[*node].unwrap_or(self.nodes[*node].y);
                    let mut nodes = std::mem::take(&mut self.layers[layer]);
                    nodes.sort_by(|a, b| wish(a).total_cmp(&wish(b)));
                    self.layers[layer] = nodes;
                }
                self.stack(layer, |node| wishes[node]);
            }
        }
        let mut x = MARGIN;
        for layer in &self.layers {
            let width = layer.iter().map(|&node| self.nodes[node].width).fold(0.0, f32::max);
            for &node in layer {
                let node = &mut self.nodes[node];
                node.x = x + width / 2.0;
                // Straight past the other nodes: lines curve only between layers.
                if matches!(node.kind, NodeKind::Bend) {
                    node.width = width;
                }
            }
            x += width + GAP_X;
        }
        let top = self.nodes.iter().map(|node| node.y - node.height / 2.0).fold(f32::INFINITY, f32::min);
        self.nodes.iter_mut().for_each(|node| node.y += 2.0 * MARGIN + LINE - top);
    }

    /// The middle of what a node of `layer` is connected to.
    fn middle(&self, node: usize, layer: usize) -> Option<f32> {
        if self.nodes[node].layer != layer {
            return None;
        }
        let other = |&(from, to): &(usize, usize)| (from == node).then_some(to).or((to == node).then_some(from));
        let joined: Vec<f32> = self.lines.iter().filter_map(other).map(|node| self.nodes[node].y).collect();
        (!joined.is_empty()).then(|| joined.iter().sum::<f32>() / joined.len() as f32)
    }

    /// Stacks the nodes of a layer, each as near to its wish as the others allow.
    fn stack(&mut self, layer: usize, wish: impl Fn(usize) -> Option<f32>) {
        let mut bottom = f32::NEG_INFINITY;
        let mut off = 0.0;
        for &node in &self.layers[layer] {
            let wanted = wish(node).unwrap_or(self.nodes[node].y);
            let half = self.nodes[node].height / 2.0;
            self.nodes[node].y = wanted.max(bottom + half);
            bottom = self.nodes[node].y + half + GAP_Y;
            off += self.nodes[node].y - wanted;
        }
        // Nodes that were only pushed down are too low on average; correct them together.
        let off = off / self.layers[layer].len().max(1) as f32;
        self.layers[layer].iter().for_each(|&node| self.nodes[node].y -= off);
    }

    fn draw(&self, name: &str) -> String {
        let right = self.nodes.iter().map(|node| node.x + node.width / 2.0).fold(0.0, f32::max) + MARGIN;
        let right = right.max(name.chars().count() as f32 * FONT * LETTER + 2.0 * MARGIN);
        let bottom = self.nodes.iter().map(|node| node.y + node.height / 2.0).fold(0.0, f32::max) + MARGIN;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{right:.0}\" height=\"{bottom:.0}\" viewBox=\"0 0 {right:.0} \
             {bottom:.0}\" font-family=\"sans-serif\">\n<title>{0}</title>\n<rect width=\"100%\" height=\"100%\" \
             fill=\"#ffffff\"/>\n<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" \
             markerHeight=\"8\" orient=\"auto\"><path d=\"M0,0 L8,4 L0,8 z\" fill=\"#59636e\"/></marker></defs>\n\
             <text x=\"{MARGIN}\" y=\"{1}\" font-size=\"{FONT}\" fill=\"#59636e\">{0}</text>\n",
            escaped(name),
            MARGIN + LINE / 2.0
        );
        for &(from, to) in &self.lines {
            self.draw_line(&mut svg, &self.nodes[from], &self.nodes[to]);
        }
        self.nodes.iter().for_each(|node| node.draw(&mut svg));
        svg.push_str("</svg>\n");
        svg
    }

    fn draw_line(&self, svg: &mut String, from: &SvgNode, to: &SvgNode) {
        let (start, end) = (from.x + from.width / 2.0, to.x - to.width / 2.0);
        let middle = (start + end) / 2.0;
        let tip = if matches!(to.kind, NodeKind::Task(_)) { " marker-end=\"url(#tip)\"" } else { "" };
        let _ = writeln!(
            svg,
            "<path d=\"M{start:.1},{0:.1} C{middle:.1},{0:.1} {middle:.1},{1:.1} {end:.1},{1:.1}\" fill=\"none\" \
             stroke=\"#59636e\" stroke-width=\"1.5\"{tip}/>",
            from.y, to.y
        );
    }
}

impl SvgNode {
    fn draw(&self, svg: &mut String) {
        let (left, top) = (self.x - self.width / 2.0, self.y - self.height / 2.0);
        let (font, fill, stroke) = match self.kind {
            NodeKind::Task("source") => (FONT, "#e6f4ea", "#2c7a4b"),
            NodeKind::Task("sink") => (FONT, "#fdf0e1", "#b06a16"),
            NodeKind::Task(_) => (FONT, "#e8effa", "#33609e"),
            NodeKind::Label => (SMALL_FONT, "#f6f8fa", "#d0d7de"),
            NodeKind::Bend => {
                let (right, y) = (left + self.width, self.y);
                let _ = writeln!(
                    svg,
                    "<path d=\"M{left:.1},{y:.1} H{right:.1}\" stroke=\"#59636e\" stroke-width=\"1.5\"/>"
                );
                return;
            }
        };
        let (width, height) = (self.width, self.height);
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"5\" fill=\"{fill}\" \
             stroke=\"{stroke}\"/>"
        );
        let first = top + (height - self.lines.len() as f32 * LINE) / 2.0 + LINE * 0.72;
        for (at, line) in self.lines.iter().enumerate() {
            let (size, weight) = match (&self.kind, at) {
                (NodeKind::Task(_), 0) => (font, " font-weight=\"bold\""),
                _ => (SMALL_FONT, ""),
            };
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"{size}\"{weight} text-anchor=\"middle\" fill=\"#1f2328\">{}</text>",
                self.x,
                first + at as f32 * LINE,
                escaped(line)
            );
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Overlapping boxes would be unreadable.
    #[test]
    fn nodes_of_a_layer_do_not_overlap() {
        let mut drawing = SvgDrawing::default();
        for task in 0..9 {
            drawing.add(NodeKind::Task("task"), vec![format!("task {task}"); 1 + task % 3], 2 * (task / 3));
        }
        for (from, to) in [(0, 8), (1, 3), (2, 3), (0, 4), (2, 5), (3, 6), (4, 6), (5, 7), (1, 7)] {
            let label = drawing.add(NodeKind::Label, vec!["by key".into()], drawing.nodes[to].layer - 1);
            drawing.connect(from, label);
            drawing.lines.push((label, to));
        }
        drawing.arrange();
        for layer in &drawing.layers {
            for pair in layer.windows(2) {
                let (above, below) = (&drawing.nodes[pair[0]], &drawing.nodes[pair[1]]);
                let between = (below.y - below.height / 2.0) - (above.y + above.height / 2.0);
                assert!(between > GAP_Y - 0.01, "{between}");
            }
        }
        assert!(drawing.nodes.iter().all(|node| node.y - node.height / 2.0 >= MARGIN));
    }
}
