//! Two levels: shared memory within hosts, and one leader per host between hosts, so that a host sends and receives the
//! data only once. H hosts of L ranks. (Bcast, reduce and barrier use the `two_level` tree of `tree.rs`, which
//! pipelines both.)
//!
//! Allreduce: binomial reduce to the leader, recursive doubling (or, for long vectors, halving and doubling) among
//! leaders, binomial bcast: 2 lg L + lg H steps (2 lg H for long vectors). Scratch 2n. Keeps rank order if each host's
//! ranks are consecutive. Allgather: blocks to the leader, ring of hosts, bcast of everything: 1 + H - 1 + lg L steps,
//! no scratch. Allgatherv works in n scratch, packed, because the places of blocks may differ between ranks.
//!
//! Source: Karonis et al., "Exploiting hierarchy in parallel computer networks" (2000).

use super::builder::ScheduleBuilder;
use super::packed::PackedBlocks;
use super::tree::{self, HostGroups};
use super::{Algorithm, ScheduleParams, halving_doubling, recursive_doubling};
use crate::schedule::BufferRange;

/// Elements per leader above which the leaders split the vector instead of exchanging all of it.
const SPLIT_MIN_LEN: usize = 2048;

/// Allreduce.
pub(crate) fn allreduce(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let hosts = HostGroups::new(p, 0);
    let (host, member) = hosts.find(p.rank);
    let members = &hosts.members[host];
    let local = ScheduleParams { rank: member as u32, size: members.len() as u32, root: 0, hosts: &[], ..*p };
    if members.len() > 1 {
        b.among(members.clone(), false, |b| tree::reduce(b, Algorithm::Binomial, &local));
    } else {
        b.copy_own(p, p.result());
    }
    let leaders: Vec<u32> = hosts.members.iter().map(|members| members[0]).collect();
    if member == 0 && leaders.len() > 1 {
        let between =
            ScheduleParams { rank: host as u32, size: leaders.len() as u32, hosts: &[], in_place: true, ..*p };
        let split = p.count >= SPLIT_MIN_LEN * leaders.len();
        let phase = if split { halving_doubling::allreduce } else { recursive_doubling::allreduce };
        b.among(leaders, true, |b| phase(b, &between));
    }
    spread(b, members, &local, p.result());
}

/// Bcast of the leader's `data` within the host.
fn spread(b: &mut ScheduleBuilder, members: &[u32], local: &ScheduleParams, data: BufferRange) {
    if members.len() > 1 {
        b.among(members.to_vec(), false, |b| tree::bcast(b, Algorithm::Binomial, local, data));
    }
}

/// Allgather and allgatherv.
pub(crate) fn allgather(b: &mut ScheduleBuilder, p: &ScheduleParams) {
    let packed = PackedBlocks::new(b, p);
    let hosts = HostGroups::new(p, 0);
    let (host, member) = hosts.find(p.rank);
    let members = &hosts.members[host];
    if member > 0 {
        b.send(members[0], p.own());
        b.next_round();
    } else {
        members[1..].iter().for_each(|&from| b.recv(from, packed.block(from)));
        b.copy_own(p, packed.block(p.rank));
        b.next_round();
        let count = hosts.members.len();
        let leader = |host: usize| hosts.members[host % count][0];
        for step in 0..count - 1 {
            let out = &hosts.members[(host + count - step) % count];
            let into = &hosts.members[(host + 2 * count - step - 1) % count];
            runs(&packed, out).for_each(|run| b.send(leader(host + 1), run));
            runs(&packed, into).for_each(|run| b.recv(leader(host + count - 1), run));
            b.next_round();
        }
    }
    let local = ScheduleParams { rank: member as u32, size: members.len() as u32, root: 0, hosts: &[], ..*p };
    spread(b, members, &local, packed.blocks(0, p.size));
    packed.unpack(b, p);
}

/// The blocks of ascending ranks as ranges, with adjacent blocks joined: the same on every rank.
fn runs(packed: &PackedBlocks, ranks: &[u32]) -> impl Iterator<Item = BufferRange> {
    ranks.chunk_by(|low, high| low + 1 == *high).map(|run| packed.blocks(run[0], run[run.len() - 1] + 1))
}
