// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lanes' interfaces: a pair of virtual Ethernet interfaces in the server's network namespace, whose receiving end is
//! polled in a kernel thread of its own (threaded NAPI).
//!
//! ```text
//! fief-7s ~~~~~~~~~> fief-7r     7: slot of the container; another scope than fief has two hexadecimal digits more
//! sends              receives    alias: fief lane SCOPE 7.2 shop/gold (7.2: slot and generation)
//! ```
//!
//! The pair has no address, no neighbours and no name resolution: only packets redirected to the sending end ever pass.

use std::fs;
use std::io;

use fief_bpf::{Context, Result, abi};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::SockProtocol;

use crate::front::OWN_INTERFACES;
use crate::links::{self, Link};
use crate::netlink::{self, GENERIC_HEADER, NESTED, attribute, attribute_bytes, terminated, u32_at};
use crate::veth::{self, Pair, tag};

/// Larger than any packet that was merged on the way in.
const MTU: u32 = 65_535;

/// Bytes of an alias; the kernel takes fewer than 256.
const LONGEST_ALIAS: usize = 250;

const FEATURES_SET: u8 = 12;
const FEATURES_HEADER: u16 = 1;
const FEATURES_WANTED: u16 = 3;
const HEADER_INDEX: u16 = 1;
const BITSET_BITS: u16 = 3;
const BITS_BIT: u16 = 1;
const BIT_NAME: u16 = 2;
const BIT_VALUE: u16 = 3;
/// With any of them a virtual interface hands packets over without its peer's thread.
const SEGMENTATION: [&str; 4] =
    ["tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation"];
/// Without it a virtual interface has no poll, and so no thread.
const MERGING: &str = "rx-gro";

const NAPI_GET: u8 = 11;
const NAPI_INTERFACE: u16 = 1;
const NAPI_THREAD: u16 = 4;

/// One end of a lane that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
    pub(super) name: String,
    pub(super) index: u32,
    /// `None`: whoever made it was killed before it was finished.
    pub(super) container: Option<abi::fief_ref>,
    pub(super) receives: bool,
}

/// The names of both ends: who sends, who receives.
pub(super) fn names(scope: &str, container: u32) -> [String; 2] {
    let tag = tag(scope);
    ["s", "r"].map(|end| format!("{OWN_INTERFACES}{container}{end}{tag}"))
}

fn alias(scope: &str, container: abi::fief_ref, path: &str) -> String {
    let mut alias = format!("fief lane {scope} {}.{} {path}", container.id, container.generation);
    // names may have letters of several bytes
    alias.truncate(alias.floor_char_boundary(LONGEST_ALIAS));
    alias
}

/// The ends of all lanes of a scope in the caller's network namespace.
pub(super) fn ends(scope: &str) -> Result<Vec<End>> {
    Ok(links::list()?.iter().filter_map(|link| end(link, scope)).collect())
}

fn end(link: &Link, scope: &str) -> Option<End> {
    let name = Some(&link.name).filter(|_| link.is_of_pair())?;
    let number = name.strip_prefix(OWN_INTERFACES)?.strip_suffix(&tag(scope))?;
    let receives = number.ends_with('r');
    let slot: u32 = number.strip_suffix(['r', 's'])?.parse().ok()?;
    let container = match link.alias.as_str() {
        "" => None,
        alias => {
            let (id, generation) =
                alias.strip_prefix(&format!("fief lane {scope} "))?.split(' ').next()?.split_once('.')?;
            let container = abi::fief_ref { id: id.parse().ok()?, generation: generation.parse().ok()? };
            Some(container).filter(|container| container.id == slot)
        }
    };
    Some(End { name: name.clone(), index: link.index, container, receives })
}

/// Makes the pair of a container; both ends are down, without an alias.
pub(super) fn make(scope: &str, container: abi::fief_ref) -> Result<Pair> {
    veth::make(names(scope, container.id), MTU)
}

/// Says whose a pair is and takes both ends up.
pub(super) fn raise(scope: &str, container: abi::fief_ref, path: &str, pair: Pair) -> Result<()> {
    veth::raise(pair, &alias(scope, container, path))
}

/// Sets the offloads of both ends, so that packets take the receiving end's poll.
pub(super) fn set_offloads(pair: Pair) -> Result<()> {
    let family = netlink::family("ethtool").context(|| "cannot set offloads".into())?;
    let set = |index: u32, names: &[&str], on: bool| {
        let bit = |name: &&str| {
            let mut bytes = attribute_bytes(BIT_NAME, &terminated(name));
            if on {
                bytes.extend(attribute_bytes(BIT_VALUE, &[]));
            }
            attribute_bytes(BITS_BIT | NESTED, &bytes)
        };
        let bits = names.iter().flat_map(bit).collect::<Vec<_>>();
        let mut request = vec![FEATURES_SET, 1, 0, 0];
        request.extend(attribute_bytes(FEATURES_HEADER | NESTED, &attribute_bytes(HEADER_INDEX, &index.to_ne_bytes())));
        request.extend(attribute_bytes(FEATURES_WANTED | NESTED, &attribute_bytes(BITSET_BITS | NESTED, &bits)));
        netlink::change(SockProtocol::NetlinkGeneric, family, 0, &request)
            .context(|| format!("cannot set the offloads of the interface {index}"))
    };
    set(pair.sends, &SEGMENTATION, false)?;
    set(pair.receives, &[MERGING], true)
}

/// Has an interface polled by a thread of its own. Sysfs shows the network namespace that mounted it, so a thread
/// mounts one for itself.
pub(super) fn set_threaded(name: &str) -> Result<()> {
    let write = || -> io::Result<()> {
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
        mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), None::<&str>)?;
        fs::write(format!("/sys/class/net/{name}/threaded"), "1")
    };
    std::thread::scope(|scope| scope.spawn(write).join())
        .unwrap_or_else(|_| Err(io::Error::other("the thread that sets it ended")))
        .context(|| format!("cannot have the interface {name} polled by a thread"))
}

/// The thread that polls an interface.
pub(super) fn thread(index: u32) -> Result<Option<i32>> {
    let what = || format!("cannot ask for the thread of the interface {index}");
    let family = netlink::family("netdev").context(what)?;
    let mut request = vec![NAPI_GET, 1, 0, 0];
    request.extend(attribute_bytes(NAPI_INTERFACE, &index.to_ne_bytes()));
    let answers = netlink::dump(SockProtocol::NetlinkGeneric, family, &request).context(what)?;
    Ok(answers
        .iter()
        .filter_map(|payload| attribute(payload.get(GENERIC_HEADER..)?, NAPI_THREAD))
        .find_map(|value| Some(u32_at(value, 0)?.cast_signed())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, alias: &str) -> Link {
        Link { index, name: name.to_owned(), alias: alias.to_owned(), kind: "veth".to_owned(), ..Link::default() }
    }

    #[test]
    fn names_fit_into_what_the_kernel_allows() {
        for scope in ["fief", "ff-123456-7"] {
            for name in names(scope, abi::FIEF_MAX_CONTAINERS - 1) {
                assert!(name.len() < 16, "{name}");
            }
        }
    }

    #[test]
    fn an_end_is_told_by_name_and_alias() {
        let container = abi::fief_ref { id: 12, generation: 3 };
        for scope in ["fief", "ff-1-0"] {
            let [sends, receives] = names(scope, 12);
            let alias = alias(scope, container, "shop/gold");
            let found = end(&link(7, &sends, &alias), scope).expect("ours");
            assert_eq!(found, End { name: sends, index: 7, container: Some(container), receives: false });
            assert!(end(&link(8, &receives, &alias), scope).expect("ours").receives);
            assert_eq!(end(&link(8, &receives, ""), scope).expect("unfinished, ours").container, None);
        }
    }

    #[test]
    fn a_long_path_is_cut_between_letters_and_its_end_is_still_told() {
        let container = abi::fief_ref { id: 12, generation: 3 };
        let [name, _] = names("fief", 12);
        for lead in ["", "x"] {
            let path = format!("{lead}{}", vec!["ü".repeat(15); 16].join("/"));
            let alias = alias("fief", container, &path);
            assert!((248..=250).contains(&alias.len()) && path.contains(alias.rsplit(' ').next().expect("a path")));
            assert_eq!(end(&link(7, &name, &alias), "fief").expect("ours").container, Some(container));
        }
    }

    #[test]
    fn a_stranger_and_another_scope_are_left_alone() {
        let alias = alias("ff-1-0", abi::fief_ref { id: 12, generation: 3 }, "shop");
        let [name, _] = names("ff-1-0", 12);
        assert_eq!(end(&link(7, &name, &alias), "ff-2-0"), None);
        assert_eq!(end(&link(7, "fief-12s", "of somebody"), "fief"), None);
        assert_eq!(end(&link(7, "fief-bridge", ""), "fief"), None);
        assert_eq!(end(&link(7, "eth0", ""), "fief"), None);
        // a loopback can bear the name, and cannot be removed
        assert_eq!(end(&Link { kind: String::new(), ..link(1, "fief-12s", "") }, "fief"), None);
    }
}
