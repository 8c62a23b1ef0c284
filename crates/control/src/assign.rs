//! Which copy should own which bucket: the published objective, with the capacities of hosts beside those of links.
//!
//! ```text
//! CU = max_n S(n)/C(n)      NU = max(max_v In(v)/Rin(v), max_u Out(u)/Rout(u), max_{u != v} F(u,v)/R(u,v))
//! minimize  max(CU, NU) + 0.1 (CU + NU) + a little for what crosses hosts, and for buckets and state that move
//! ```
//! The published sum of both lets CPUs that have time keep buckets from a link that is free. S(n) is the work on host
//! n, or of one copy, which has one CPU at most. Sources stay where they are, so what host u sends to host v is the
//! sum of what it sends to the buckets there. Solved by moves and swaps away from the fullest hosts (`search`), in
//! milliseconds for thousands of buckets.
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

impl Problem {
    /// How full the fullest parts are today.
    pub fn load(&self) -> Load {
        state::State::of_homes(self).load()
    }

    /// How full they would be with other owners, by task as in a [`Plan`]; `None` if these do not fit.
    pub fn load_with(&self, owners: &[(u32, Vec<u32>)]) -> Option<Load> {
        let mut state = state::State::of_homes(self);
        for (task, owners) in owners {
            let (first, end) = (*self.first_lane.get(*task as usize)?, *self.first_lane.get(*task as usize + 1)?);
            let items: Vec<usize> =
                (0..self.items.len()).filter(|item| self.items[*item].task == *task as usize).collect();
            if items.len() != owners.len() || owners.iter().any(|owner| first + *owner as usize >= end) {
                return None;
            }
            for (item, owner) in items.into_iter().zip(owners) {
                state.move_to(item, first + *owner as usize);
            }
        }
        Some(state.load())
    }
}

#[cfg(test)]
mod tests;
