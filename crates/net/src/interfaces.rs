//! This host's addresses, at which other hosts may reach it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses of the interfaces that are up, best first: physical interfaces before the bridges of containers and
/// virtual machines, IPv4 before IPv6, loopback last. Omits link-local addresses, which mean nothing to another host.
pub(crate) fn addresses() -> Vec<IpAddr> {
    let mut found: Vec<(u8, IpAddr)> = Vec::new();
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: on success `list` is a linked list that lives until `freeifaddrs` below.
    if unsafe { libc::getifaddrs(&mut list) } != 0 {
        return Vec::new();
    }
    let mut next = list;
    while !next.is_null() {
        // SAFETY: `next` is a node of the list; it is only read.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_addr.is_null() || entry.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: `ifa_addr` is not null and points to a socket address whose family tells its true type.
        let ip = unsafe {
            match i32::from((*entry.ifa_addr).sa_family) {
                libc::AF_INET => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in>();
                    IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)))
                }
                libc::AF_INET6 => {
                    let address = &*entry.ifa_addr.cast::<libc::sockaddr_in6>();
                    IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr))
                }
                _ => continue,
            }
        };
        // SAFETY: a zero-terminated string within the list.
        let name = unsafe { std::ffi::CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        if let Some(place) = preference(&name, ip) {
            found.push((place, ip));
        }
    }
    // SAFETY: frees what `getifaddrs` returned, once; nothing refers to it any more.
    unsafe { libc::freeifaddrs(list) };
    found.sort_by_key(|(place, _)| *place);
    found.into_iter().map(|(_, ip)| ip).collect()
}

fn preference(interface: &str, ip: IpAddr) -> Option<u8> {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if link_local || ip.is_unspecified() {
        return None;
    }
    if ip.is_loopback() {
        return Some(4);
    }
    let bridge = ["docker", "br-", "virbr", "veth", "cni", "flannel", "cali"].iter().any(|p| interface.starts_with(p));
    Some(2 * u8::from(bridge) + u8::from(ip.is_ipv6()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_interfaces_come_before_bridges_and_loopback_is_last() {
        let place = |name, ip: &str| preference(name, ip.parse().unwrap());
        let order = [
            place("eth0", "10.0.0.5"),
            place("eth0", "2001:db8::5"),
            place("docker0", "172.17.0.1"),
            place("lo", "127.0.0.1"),
        ];
        assert!(order.is_sorted() && order.iter().all(Option::is_some), "{order:?}");
        assert_eq!(place("eth0", "fe80::1"), None);
        assert_eq!(place("eth0", "169.254.0.9"), None);
        assert!(addresses().iter().all(|ip| !ip.is_unspecified()));
    }
}
