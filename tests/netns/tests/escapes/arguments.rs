// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the socket options are given: a value that is too short, out of range or too long is refused, and changes nothing.

use std::os::fd::OwnedFd;

use fief::{Container, ErrorKind, Options};
use fief_bpf::abi;
use fief_tests_netns::{fresh_socket, in_unit, record, set_option, unnamed};
use nix::errno::Errno;

#[test]
fn values_that_are_too_short_or_out_of_range_are_refused() {
    in_unit("arguments::values_that_are_too_short_or_out_of_range_are_refused", || {
        let container = Container::create().unwrap();
        let id = container.info().unwrap().id;
        for option in 0..64u32 {
            for length in [1usize, 3, 4, 7, 8, 15, 31, 32, 100] {
                for fill in [0u8, 1, 255] {
                    // a name is any bytes; the rest must not be taken by accident
                    let _ = set_option(&container, option, &vec![fill; length]);
                }
            }
        }
        let after = record(id).unwrap();
        assert_eq!(after.attributes[0].share_ppm, 0);
        assert!((1..=10_000).contains(&after.attributes[0].weight));
        for option in [abi::FIEF_CREATE, abi::FIEF_DUP, abi::FIEF_OPEN_BINDING] {
            assert!(set_option(&container, option, &[]).is_err(), "a descriptor became another container's");
        }
        assert_eq!(
            set_option(std::net::TcpListener::bind("127.0.0.1:0").unwrap(), abi::FIEF_CREATE, &[]),
            Err(Errno::EINVAL)
        );
    });
}

/// A container of these flags and this weight, as a program without our library asks for it.
fn made(flags: u32, weight: u32) -> Result<OwnedFd, Errno> {
    let fresh = fresh_socket();
    set_option(&fresh, abi::FIEF_CREATE, &[flags.to_ne_bytes(), weight.to_ne_bytes()].concat()).map(|()| fresh)
}

#[test]
fn a_container_is_made_as_it_is_asked_for_or_not_at_all() {
    in_unit("arguments::a_container_is_made_as_it_is_asked_for_or_not_at_all", || {
        for (flags, weight) in [(0, 10_001), (0, u32::MAX), (2, 0), (u32::MAX, 100)] {
            assert_eq!(made(flags, weight).err(), Some(Errno::EINVAL), "{flags} {weight}");
        }
        let error = Options::new().weight(10_001).create().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().ends_with("; a weight is 1 to 10000"), "{error}");
        assert_eq!(unnamed(), 0);
        let most = Container::from_fd(made(abi::FIEF_CREATE_PASS_UP, 10_000).unwrap()).unwrap();
        assert_eq!(most.attributes().unwrap().weight, 10_000);
    });
}

/// A name that were cut would be that of another container that begins in the same way.
#[test]
fn a_name_that_does_not_fit_is_refused() {
    in_unit("arguments::a_name_that_does_not_fit_is_refused", || {
        let container = Container::create().unwrap();
        let longest = "a".repeat(31);
        container.set_name(&longest).unwrap();
        for length in [32, 33, 64, 4096] {
            let long = vec![b'a'; length];
            assert_eq!(set_option(&container, abi::FIEF_SET_NAME, &long), Err(Errno::EINVAL), "{length}");
        }
        for byte in [b'/', b'\n', 0x1b, 0x7f, 0x80, 0xff] {
            assert_eq!(
                set_option(&container, abi::FIEF_SET_NAME, &[b'a', byte, b'b']),
                Err(Errno::EINVAL),
                "{byte:#x}"
            );
        }
        for name in ["", "a/b", "a\0b", "\u{fc}", "a\u{7f}", &"a".repeat(32)] {
            let error = container.set_name(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{name:?}");
            assert!(error.to_string().contains("; a name has 1 to 31 bytes"), "{error}");
        }
        assert_eq!(container.info().unwrap().name, longest);
        // what stands behind the end of a string in its buffer is nobody's name
        let mut buffer = [b'b'; 64];
        buffer[3] = 0;
        set_option(&container, abi::FIEF_SET_NAME, &buffer).unwrap();
        assert_eq!(container.info().unwrap().name, "bbb");
    });
}
