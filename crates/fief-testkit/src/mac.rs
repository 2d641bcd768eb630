// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hardware address of an interface, as it is written (`02:00:00:00:00:01`) and as it stands in a frame.

use crate::{Error, Result};
use std::fmt;
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac([u8; 6]);

impl Mac {
    pub fn octets(self) -> [u8; 6] {
        self.0
    }
}

impl FromStr for Mac {
    type Err = Error;

    fn from_str(text: &str) -> Result<Mac> {
        let octets = text.split(':').map(|word| u8::from_str_radix(word, 16));
        let octets = octets.collect::<std::result::Result<Vec<u8>, _>>().ok();
        octets
            .and_then(|octets| octets.try_into().ok())
            .map(Mac)
            .ok_or_else(|| Error::failed(format!("{text:?} is no hardware address: six bytes like 02:00:00:00:00:01")))
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hardware_address_has_six_bytes() {
        let mac: Mac = "0a:1b:2c:3d:4e:5f".parse().expect("one");
        assert_eq!(
            (mac.octets(), mac.to_string().as_str()),
            ([0x0a, 0x1b, 0x2c, 0x3d, 0x4e, 0x5f], "0a:1b:2c:3d:4e:5f")
        );
        for text in ["", "0a:1b", "0a:1b:2c:3d:4e:5f:60", "0a:1b:2c:3d:4e:xx", "0a:1b:2c:3d:4e:100"] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }
}
