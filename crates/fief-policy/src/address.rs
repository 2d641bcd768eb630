// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Addresses that a server listens on, and which of them are the same connections.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use crate::diagnostic::{Findings, Kind};
use crate::quantity::Refused;

/// Addresses of all listeners, each port of a range counted; the kernel side has room for so many.
const MOST_ADDRESSES: usize = 1024;

/// Reads `"0.0.0.0:80"`, `"[::]:80"` or `"0.0.0.0:8000-8099"`: the address with its first port, and the last port.
pub(crate) fn listening(text: &str) -> Result<(SocketAddr, u16), Refused> {
    let range = text.rsplit_once(':').and_then(|(_, ports)| ports.split_once('-').map(|(_, last)| last));
    let Some(last) = range else {
        return one_port(text).map(|address| (address, address.port()));
    };
    let first = one_port(&text[..text.len() - last.len() - 1])?;
    match last.parse::<u16>() {
        Ok(last) if last >= first.port() => Ok((first, last)),
        Ok(last) => refused(
            format!("the ports of \"{text}\" end before they begin"),
            format!("write \"{}-{}\"", SocketAddr::new(first.ip(), last), first.port()),
        ),
        Err(_) => refused(
            format!("\"{last}\" in \"{text}\" is not a port"),
            format!("write a port from {} to 65535, as in \"{first}-{}\"", first.port(), first.port()),
        ),
    }
}

/// An IPv4-mapped address becomes the IPv4 one.
fn one_port(text: &str) -> Result<SocketAddr, Refused> {
    let Ok(address) = text.parse::<SocketAddr>() else {
        return Err(not_an_address(text));
    };
    if let SocketAddr::V6(v6) = address
        && (v6.scope_id() != 0 || text.contains('%'))
    {
        return refused(
            format!("\"{text}\" names an interface"),
            format!("write \"[{}]:{}\"; a listener holds for every interface", v6.ip(), v6.port()),
        );
    }
    let ip = address.ip().to_canonical();
    if address.port() == 0 {
        return refused(
            format!("\"{text}\" has port 0"),
            format!("write the port that the server listens on, as in \"{}\"", SocketAddr::new(ip, 80)),
        );
    }
    if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return refused(
            format!("{ip} is not an address of one machine"),
            "write an address of this machine, or 0.0.0.0 or [::] for all",
        );
    }
    Ok(SocketAddr::new(ip, address.port()))
}

fn refused<T>(message: String, remedy: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { message, remedy: remedy.into() })
}

fn not_an_address(text: &str) -> Refused {
    let message = format!("\"{text}\" is not an address and a port");
    let trimmed = text.trim();
    let colons = trimmed.matches(':').count();
    let (host, port) = trimmed.rsplit_once(':').unwrap_or((trimmed, ""));
    let port_number: Option<u16> = port.parse().ok();
    let remedy = if trimmed.parse::<SocketAddr>().is_ok() {
        format!("write \"{trimmed}\", without the spaces")
    } else if let Ok(port) = trimmed.parse::<u16>() {
        every_address(port)
    } else if let Ok(ip) = trimmed.trim_matches(['[', ']']).parse::<IpAddr>() {
        let whole = format!("add a port, as in \"{}\"", SocketAddr::new(ip, 80));
        match (host.parse::<Ipv6Addr>(), port_number) {
            (Ok(ip), Some(port)) => {
                format!("write \"{}\" or {whole}", SocketAddr::new(ip.into(), port))
            }
            _ => whole,
        }
    } else if let (Ok(ip), Some(port)) = (host.trim_matches(['[', ']']).parse::<IpAddr>(), port_number) {
        format!("write \"{}\"", SocketAddr::new(ip, port))
    } else if let (true, Some(port)) = (host.is_empty() || host == "*", port_number) {
        every_address(port)
    } else if let (Ok(ip), 1) | (Ok(ip), 3..) = (host.trim_matches(['[', ']']).parse::<IpAddr>(), colons) {
        format!("write a port from 1 to 65535, as in \"{}\"", SocketAddr::new(ip, 80))
    } else if let (Some(port), true) = (port_number, host.chars().any(|letter| letter.is_ascii_alphabetic())) {
        format!("write the address; names are not looked up: {}", every_address(port))
    } else {
        every_address(80)
    };
    Refused { message, remedy }
}

fn every_address(port: u16) -> String {
    format!("write \"0.0.0.0:{port}\" for every IPv4 address or \"[::]:{port}\" for every address")
}

/// A listener's address in the file.
pub(crate) struct Listening<'a> {
    pub(crate) name: &'a str,
    pub(crate) address: SocketAddr,
    pub(crate) last_port: u16,
    /// Nobody listens here.
    pub(crate) forward: bool,
    pub(crate) span: Range<usize>,
}

impl Listening<'_> {
    fn addresses(&self) -> impl Iterator<Item = SocketAddr> + use<> {
        let ip = self.address.ip();
        (self.address.port()..=self.last_port).map(move |port| SocketAddr::new(ip, port))
    }
}

/// Reports listeners that cannot both be served, and more addresses than there is room for.
///
/// One address twice is one. So is a wildcard beside an address of its own family and port: Linux refuses the second
/// `listen` with EADDRINUSE, servers that know it listen on the wildcard alone, and the exact listener would never see a
/// connection. `0.0.0.0:80` beside `[::]:80` is none: the second one then is for IPv6 alone (`IPV6_V6ONLY`), which is
/// how servers listen on both. Where connections are forwarded nobody listens, and the exact address goes first.
pub(crate) fn check_conflicts(listeners: &[Listening<'_>], findings: &mut Findings) {
    let mut first_at: HashMap<SocketAddr, usize> = HashMap::new();
    let mut is_reported = vec![false; listeners.len()];
    for (index, listener) in listeners.iter().enumerate() {
        for address in listener.addresses() {
            let first = *first_at.entry(address).or_insert(index);
            // Of a range of ports, one is enough.
            if first != index && !is_reported[index] {
                same_address(&listeners[first], listener, address, findings);
                is_reported[index] = true;
            }
        }
        if first_at.len() > MOST_ADDRESSES && listener.last_port != listener.address.port() {
            let message =
                format!("with the ports of `{}` the listeners have {} addresses", listener.name, first_at.len());
            let expected = format!("at most {MOST_ADDRESSES} addresses, each port of a range counted");
            let remedy = "take fewer ports, or a listener for each server that needs one";
            findings.add(Kind::Limit, listener.span.clone(), message, expected, remedy);
            break;
        }
    }
    for (index, listener) in listeners.iter().enumerate() {
        if is_reported[index] {
            continue;
        }
        let beside = listener.addresses().find_map(|address| {
            let wildcard = SocketAddr::new(wildcard_of(address.ip()), address.port());
            let other = *first_at.get(&wildcard).filter(|_| address != wildcard)?;
            if listener.forward || listeners[other].forward {
                return None;
            }
            Some((address, wildcard, other))
        });
        if let Some((address, wildcard, other)) = beside {
            below_wildcard(&listeners[other], listener, address, wildcard, findings);
        }
    }
}

fn same_address(other: &Listening<'_>, listener: &Listening<'_>, address: SocketAddr, findings: &mut Findings) {
    findings
        .add(
            Kind::Conflict,
            listener.span.clone(),
            format!("listeners `{}` and `{}` have the same address {address}", other.name, listener.name),
            "an address of its own for each listener",
            format!("move the rules of `{}` to `{}`, or change one of the addresses", listener.name, other.name),
        )
        .also(other.span.clone(), format!("`{}` has it already", other.name));
}

fn below_wildcard(
    other: &Listening<'_>,
    listener: &Listening<'_>,
    address: SocketAddr,
    wildcard: SocketAddr,
    findings: &mut Findings,
) {
    let Listening { name, span, .. } = listener;
    findings
        .add(
            Kind::Conflict,
            span.clone(),
            format!("connections to {address} of `{name}` arrive at {wildcard} of `{}`", other.name),
            "either the wildcard or exact addresses on one port: Linux lets a server listen on one of the two",
            format!("move the rules of `{name}` to `{}`, or give `{}` the exact address too", other.name, other.name),
        )
        .also(other.span.clone(), format!("`{}` takes every address of this family", other.name));
}

fn wildcard_of(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}
