// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads source addresses: prefixes of both families, single addresses, ranges of addresses, and `any`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::nearest::nearest;
use crate::quantity::Refused;

pub(crate) const EXPECTED: &str =
    "a prefix like \"10.1.0.0/16\" or \"2001:db8::/32\", an address, a range like \"10.0.0.5-10.0.0.9\", or \"any\"";

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Any,
    /// One prefix, or those that make up a range.
    Nets(Vec<IpNet>),
}

/// One element of `from` or `not-from`.
pub(crate) fn source(text: &str) -> Result<Source, Refused> {
    if text == "any" {
        return Ok(Source::Any);
    }
    if let Some((first, last)) = text.split_once('-')
        && let (Ok(first), Ok(last)) = (first.parse(), last.parse())
    {
        return range(text, first, last);
    }
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return Err(not_an_address(text, address, length));
    };
    let widest = if address.is_ipv4() { 32 } else { 128 };
    let length: u8 = match length {
        None => widest,
        Some(digits) => match parse_length(digits) {
            Some(length) if length <= widest => length,
            _ => return Err(bad_length(text, address, digits, widest)),
        },
    };
    let net = IpNet::new(address, length).expect("the length was checked");
    if net.addr() != net.network() {
        return Err(Refused {
            message: format!("\"{text}\" has host bits set: {address} is inside of {}", net.trunc()),
            remedy: format!("write \"{}\" for the whole prefix, or \"{address}\" for the one address", net.trunc()),
        });
    }
    Ok(Source::Nets(vec![without_mapping(net)]))
}

/// Whether a prefix of IPv6 has all of IPv4 in it, which tables of mapped addresses would take for part of it.
pub fn has_mapped(net: &IpNet) -> bool {
    const MAPPED: Ipv6Addr = Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0);
    matches!(net, IpNet::V6(net) if net.prefix_len() < 96 && net.contains(&MAPPED))
}

/// One prefix or address, as a command takes it. The error is the message with its remedy.
pub fn single(text: &str) -> Result<IpNet, String> {
    match source(text) {
        Ok(Source::Nets(nets)) if nets.len() == 1 => Ok(nets[0]),
        Ok(Source::Nets(nets)) => {
            let all: Vec<String> = nets.iter().map(IpNet::to_string).collect();
            Err(format!("\"{text}\" takes {} prefixes; name one at a time: {}", nets.len(), all.join(", ")))
        }
        Ok(Source::Any) => Err("\"any\" is everybody; write an address or prefix".to_owned()),
        Err(Refused { message, remedy }) => Err(format!("{message}; {remedy}")),
    }
}

/// ::ffff:10.0.0.0/104 is 10.0.0.0/8.
fn without_mapping(net: IpNet) -> IpNet {
    match net {
        IpNet::V6(v6) if v6.prefix_len() >= 96 => match v6.addr().to_ipv4_mapped() {
            Some(v4) => IpNet::V4(Ipv4Net::new(v4, v6.prefix_len() - 96).expect("at most 128 - 96")),
            None => net,
        },
        _ => net,
    }
}

fn parse_length(digits: &str) -> Option<u8> {
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    if is_plain { digits.parse().ok() } else { None }
}

fn bad_length(text: &str, address: IpAddr, digits: &str, widest: u8) -> Refused {
    // 255.255.0.0 is how other programs write 16.
    let from_mask = digits
        .parse::<Ipv4Addr>()
        .ok()
        .filter(|_| address.is_ipv4())
        .and_then(|mask| ipnet::ip_mask_to_prefix(mask.into()).ok());
    let remedy = match from_mask
        .or_else(|| digits.trim().trim_start_matches('0').parse().ok().filter(|&length| length <= widest))
    {
        Some(length) => match IpNet::new(address, length) {
            Ok(net) => format!("write \"{}\"", net.trunc()),
            Err(_) => format!("write \"{address}/{widest}\""),
        },
        None => format!("write a length from 0 to {widest}, or \"{address}\" for the one address"),
    };
    Refused { message: format!("\"{text}\" has no valid prefix length: \"{digits}\""), remedy }
}

fn not_an_address(text: &str, address: &str, length: Option<&str>) -> Refused {
    let message = format!("\"{text}\" is not an address or prefix");
    let remedy = if text.trim() != text && source(text.trim()).is_ok() {
        format!("write \"{}\", without the spaces", text.trim())
    } else if let Some(words) = meant_any(text) {
        format!("write \"{words}\"")
    } else if let Some(guess) = completed(address, length) {
        format!("write \"{guess}\"")
    } else if looks_like_a_name(address) {
        "write its addresses; names are not looked up".to_owned()
    } else {
        "write an address with all its parts, as in \"10.1.0.0/16\" or \"2001:db8::/32\"".to_owned()
    };
    Refused { message, remedy }
}

fn meant_any(text: &str) -> Option<&'static str> {
    const WORDS: [&str; 5] = ["any", "all", "*", "everyone", "default"];
    let is_word = WORDS.contains(&text.to_lowercase().as_str()) || nearest(text, ["any"]).is_some();
    is_word.then_some("any")
}

/// "10.1/16" and "10.1.*" as whole prefixes.
fn completed(address: &str, length: Option<&str>) -> Option<IpNet> {
    let parts: Vec<&str> = address.trim_end_matches(".*").trim_end_matches('.').split('.').collect();
    if parts.len() >= 4 {
        return None;
    }
    let mut octets = [0u8; 4];
    for (octet, part) in octets.iter_mut().zip(&parts) {
        *octet = part.parse().ok()?;
    }
    let implied = u8::try_from(parts.len() * 8).ok()?;
    let has_point = address.contains('.');
    let length = match length {
        Some(digits) => parse_length(digits).filter(|&length| length <= 32)?,
        None if has_point => implied,
        None => return None,
    };
    Some(IpNet::V4(Ipv4Net::new(octets.into(), length).ok()?.trunc()))
}

/// Addresses from the first to the last, as prefixes.
fn range(text: &str, first: IpAddr, last: IpAddr) -> Result<Source, Refused> {
    if first.is_ipv4() != last.is_ipv4() {
        let message = format!("\"{text}\" begins in one family of addresses and ends in the other");
        return Err(Refused { message, remedy: "write a range for each family".to_owned() });
    }
    if first > last {
        let message = format!("\"{text}\" ends before it begins");
        return Err(Refused { message, remedy: format!("write \"{last}-{first}\"") });
    }
    Ok(Source::Nets(between(first, last).into_iter().map(without_mapping).collect()))
}

/// The fewest prefixes that make up a range.
fn between(first: IpAddr, last: IpAddr) -> Vec<IpNet> {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => ipnet::Ipv4Subnets::new(first, last, 0).map(IpNet::V4).collect(),
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            ipnet::Ipv6Subnets::new(first, last, 0).map(|net: Ipv6Net| IpNet::V6(net)).collect()
        }
        _ => Vec::new(),
    }
}

fn looks_like_a_name(address: &str) -> bool {
    let mut characters = address.chars();
    characters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && !address.contains(':')
        && characters.all(|character| character.is_ascii_alphanumeric() || character == '-' || character == '.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn nets(text: &str) -> Vec<IpNet> {
        match source(text) {
            Ok(Source::Nets(nets)) => nets,
            Ok(Source::Any) => panic!("{text} is any"),
            Err(refused) => panic!("{}", refused.message),
        }
    }

    #[test]
    fn a_range_is_the_fewest_prefixes_of_both_families() {
        let texts = |text: &str| nets(text).iter().map(IpNet::to_string).collect::<Vec<_>>();
        assert_eq!(texts("10.0.0.5-10.0.0.9"), ["10.0.0.5/32", "10.0.0.6/31", "10.0.0.8/31"]);
        assert_eq!(texts("10.0.0.0-10.0.0.255"), ["10.0.0.0/24"]);
        assert_eq!(texts("0.0.0.0-255.255.255.255"), ["0.0.0.0/0"]);
        assert_eq!(texts("2001:db8::1-2001:db8::2"), ["2001:db8::1/128", "2001:db8::2/128"]);
        assert_eq!(texts("::ffff:10.0.0.4-::ffff:10.0.0.7"), ["10.0.0.4/30"]);
    }

    #[test]
    fn a_range_that_ends_before_it_begins_or_in_another_family_is_refused_with_a_remedy() {
        let refused = |text: &str| source(text).expect_err("it is none").remedy;
        assert_eq!(refused("10.0.0.9-10.0.0.5"), "write \"10.0.0.5-10.0.0.9\"");
        assert_eq!(refused("10.0.0.9-2001:db8::1"), "write a range for each family");
        assert!(source("10.0.0.9 - 10.0.0.12").is_err() && source("10.0.0.0/24-10.0.1.0/24").is_err());
    }

    proptest! {
        #[test]
        fn a_range_holds_its_addresses_and_no_other(a in any::<u32>(), b in any::<u32>(), other in any::<u32>()) {
            let (first, last) = (a.min(b), a.max(b));
            let nets = nets(&format!("{}-{}", Ipv4Addr::from(first), Ipv4Addr::from(last)));
            let holds = |address: u32| nets.iter().any(|net| net.contains(&IpAddr::V4(address.into())));
            prop_assert!(holds(first) && holds(last));
            prop_assert_eq!(holds(other), (first..=last).contains(&other));
        }
    }
}
