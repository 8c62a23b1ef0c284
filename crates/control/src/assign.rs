//! Which copy should own which bucket: the published objective, with the capacities of hosts beside those of links.
//!
//! ```text
//! minimize  max_n S(n)/C(n)  +  max(max_v In(v)/Rin(v), max_u Out(u)/Rout(u), max_{u != v} F(u,v)/R(u,v))
//!           + a little for what crosses hosts, and for buckets and state that move
//! ```
//! S(n) is the work on host n, or of one copy, which has one CPU at most. Sources stay where they are, so what host u
//! sends to host v is the sum of what it sends to the buckets there. Solved by moves and swaps away from the fullest
//! hosts (`search`), in milliseconds for thousands of buckets.
//!
//! Source: Suri et al., VAYU; the terms of hosts are ours (`max_v In(v)/Rin(v)` sees a choked inbound link, of which
//! each pair alone looks empty).

mod plan;
mod problem;
mod search;
mod state;

pub use self::{
    plan::{AssignError, Load, Plan},
    problem::Problem,
};

/// Finds better owners of the buckets, or none if those of today are as good.
///
/// Nothing is left on hosts that are drained. Buckets without load move only off these.
///
/// # Errors
/// If all hosts with copies of a task are drained.
pub fn assign(problem: &Problem) -> Result<Plan, AssignError> {
    problem.check()?;
    let mut state = state::State::of(problem);
    search::improve(&mut state);
    Ok(plan::Plan::of(problem, &state))
}

#[cfg(test)]
mod tests;
