//! Decides which copy should own which bucket, with the published objective plus terms for the capacities of hosts.
//!
//! ```text
//! CU = max_n S(n)/C(n)      NU = max(max_v In(v)/Rin(v), max_u Out(u)/Rout(u), max_{u != v} F(u,v)/R(u,v))
//! minimize  max(CU, NU) + 0.1 (CU + NU) + a little for what crosses hosts, and for buckets and state that move
//! ```
//! The published sum of both terms lets idle CPUs keep buckets away from a free link. S(n) is the work on host n, or
//! of one copy, which has one CPU at most. Sources stay where they are, so what host u sends to host v is the sum of
//! what it sends to the buckets there. `search` solves this by moves and swaps away from the fullest hosts, in
//! milliseconds for thousands of buckets.
//!
//! Source: Suri et al., VAYU; the terms for hosts are ours (`max_v In(v)/Rin(v)` sees a choked inbound link that
//! looks empty in each single pair).

mod plan;
mod problem;
mod search;
mod share;
mod state;

pub use self::{
    plan::{AssignError, Load, Plan},
    problem::Problem,
    share::share_with,
};

/// Finds better owners for the buckets, or none if the current ones are as good.
///
/// Nothing stays on drained hosts and spare workers. Buckets without load only move off these.
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
    /// How full the fullest parts are now.
    pub fn load(&self) -> Load {
        state::State::of_homes(self).load()
    }

    /// How full they would be with other owners, by task as in a [`Plan`]; `None` if the owners do not fit.
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
mod oracle;
#[cfg(test)]
mod tests;
