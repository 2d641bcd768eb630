// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers with units: percentages, bytes, bits per second, times.
//!
//! They are read digit by digit and exactly: 0.1% is 1,000 parts per million, not what a floating number makes of it.
//! An error is the message and the remedy.

use crate::model::Latency;

pub(crate) struct Refused {
    pub(crate) message: String,
    pub(crate) remedy: String,
}

fn refused<T>(message: impl Into<String>, remedy: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { message: message.into(), remedy: remedy.into() })
}

/// `"1024-65535"` or `"53"`: first and last port.
pub(crate) fn ports(text: &str) -> Result<(u16, u16), Refused> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let [Ok(first), Ok(last)] = [first, last].map(str::parse::<u16>) else {
        return refused(format!("\"{text}\" is no port"), "write one port or two with a hyphen, as in \"1024-65535\"");
    };
    if first == 0 {
        return refused(format!("\"{text}\" begins with port 0"), "write 1 for the first port that there is");
    }
    if first > last {
        return refused(format!("\"{text}\" ends before it begins"), format!("write \"{last}-{first}\""));
    }
    Ok((first, last))
}

/// `"12.5%"` in parts per million.
pub(crate) fn percent(text: &str) -> Result<u32, Refused> {
    let Some(number) = text.strip_suffix('%') else {
        return match Decimal::parse(text) {
            Some(_) => refused(format!("\"{text}\" has no unit"), format!("write \"{text}%\"")),
            None => {
                refused(format!("\"{text}\" is not a percentage"), "write a number and a percent sign, as in \"60%\"")
            }
        };
    };
    let Some(decimal) = Decimal::parse(number) else {
        let digits: String =
            number.chars().filter(|character| character.is_ascii_digit() || *character == '.').collect();
        return match Decimal::parse(&digits) {
            Some(_) if !number.contains('-') => {
                refused(format!("\"{text}\" is not a percentage"), format!("write \"{digits}%\""))
            }
            _ => refused(format!("\"{text}\" is not a percentage"), "write a number and a percent sign, as in \"60%\""),
        };
    };
    match decimal.times(10_000) {
        _ if decimal.digits == 0 => refused(
            "0% is no share and no limit",
            "remove it for nothing guaranteed or no limit, or write more than 0%",
        ),
        Some(ppm @ 1..=1_000_000) => Ok(ppm as u32),
        Some(_) => refused(format!("\"{text}\" is more than the machine"), "write at most \"100%\""),
        None => refused(
            format!("\"{text}\" is finer than a millionth of the machine, or far more than all of it"),
            "write at most four decimals and at most \"100%\"",
        ),
    }
}

/// `"512M"` in bytes; suffixes as the kernel reads them for memory.max.
pub(crate) fn bytes(text: &str, least: u64) -> Result<u64, Refused> {
    let unit_at = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let scale: u64 = match unit.to_ascii_uppercase().as_str() {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        other => {
            let letter = other.trim().chars().next().filter(|letter| "KMGT".contains(*letter));
            return match letter {
                Some(letter) if Decimal::parse(number).is_some() => refused(
                    format!("\"{text}\" has an unknown unit"),
                    format!("write \"{number}{letter}\"; {letter} is a power of 1024"),
                ),
                _ => refused(
                    format!("\"{text}\" is not a number of bytes"),
                    "write a number and K, M, G or T, as in \"512M\"",
                ),
            };
        }
    };
    match Decimal::parse(number).map(|decimal| decimal.times(scale)) {
        Some(Some(bytes)) if bytes >= least => Ok(bytes),
        Some(Some(_)) => refused(
            format!("\"{text}\" is less than a page"),
            format!("write at least {least}, or \"max\" for no limit"),
        ),
        Some(None) => refused(
            format!("\"{text}\" is not a whole number of bytes in 64 bits"),
            "write less, or \"max\" for no limit",
        ),
        None => {
            refused(format!("\"{text}\" is not a number of bytes"), "write a number and K, M, G or T, as in \"512M\"")
        }
    }
}

/// `"100Mbit"` in bits per second; units as `tc` has them.
pub(crate) fn bit_rate(text: &str) -> Result<u64, Refused> {
    let unit_at = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let scale: u64 = match unit.to_ascii_lowercase().as_str() {
        "bit" => 1,
        "kbit" => 1_000,
        "mbit" => 1_000_000,
        "gbit" => 1_000_000_000,
        "tbit" => 1_000_000_000_000,
        _ if Decimal::parse(number).is_none() => {
            return refused(format!("\"{text}\" is not a rate"), "write a number and its unit, as in \"100Mbit\"");
        }
        other => {
            let prefix = other.trim().chars().next().filter(|letter| "kmgt".contains(*letter));
            let prefix = prefix.map(|letter| if letter == 'k' { letter } else { letter.to_ascii_uppercase() });
            let unit = prefix.map_or("bit".to_owned(), |prefix| format!("{prefix}bit"));
            let what = if other.is_empty() { "has no unit" } else { "has an unknown unit" };
            return refused(
                format!("\"{text}\" {what}"),
                format!("write \"{number}{unit}\"; rates are in bits per second"),
            );
        }
    };
    match Decimal::parse(number).map(|decimal| decimal.times(scale)) {
        Some(Some(0)) => refused("a rate of 0 lets nothing through", "write more than 0, or \"max\" for no limit"),
        Some(Some(bits)) => Ok(bits),
        Some(None) => refused(
            format!("\"{text}\" is not a whole number of bits per second in 64 bits"),
            "write whole bits, or \"max\" for no limit",
        ),
        None => refused(format!("\"{text}\" is not a rate"), "write a number and its unit, as in \"100Mbit\""),
    }
}

/// `"25%"`: percentages that the kernel side counts as whole numbers.
pub(crate) fn whole_percent(text: &str) -> Result<u32, Refused> {
    let ppm = percent(text)?;
    if !ppm.is_multiple_of(10_000) {
        let remedy = format!("write \"{}%\"", (ppm / 10_000).max(1));
        return refused(format!("\"{text}\" is not a whole percentage"), remedy);
    }
    Ok(ppm / 10_000)
}

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLISECOND;
const HOUR: u64 = 3600 * SECOND;
const LIKE_A_TIME: &str = "write a number and ms, s, m or h, as in \"5s\"";

/// `"50ms"`, `"5s"`, `"2m"`, `"1h"` in nanoseconds.
pub(crate) fn duration(text: &str) -> Result<u64, Refused> {
    time(text, MILLISECOND..=24 * HOUR)
}

/// `"99% in 20ms"`: of a class's requests so many are answered within the time.
pub(crate) fn latency(text: &str) -> Result<Latency, Refused> {
    let Some((part, within)) = text.split_once(" in ") else {
        return refused(format!("\"{text}\" is not a part of requests and a time"), LIKE_A_LATENCY);
    };
    let ppm = percent(part.trim())?;
    if !LATENCY_PPM.contains(&ppm) {
        return refused(format!("\"{part}\" is not within 50% and 99.9%"), LIKE_A_LATENCY);
    }
    let within_ns = time(within.trim(), MILLISECOND..=60 * SECOND)?;
    Ok(Latency { within_ns, ppm })
}

const LIKE_A_LATENCY: &str = "write a part and a time, as in \"99% in 20ms\"";
/// More than the last one needs thousands of answers a second to say anything.
const LATENCY_PPM: std::ops::RangeInclusive<u32> = 500_000..=999_000;

/// A period of deadlines, or the budget in it.
pub(crate) fn period(text: &str) -> Result<u64, Refused> {
    time(text, MILLISECOND..=SECOND)
}

/// How long a place of a queue is held.
pub(crate) fn stale(text: &str) -> Result<u64, Refused> {
    time(text, 16 * MILLISECOND..=30 * SECOND)
}

/// `"2s"` in whole seconds that fit into 16 bits.
pub(crate) fn seconds(text: &str) -> Result<u16, Refused> {
    let ns = time(text, SECOND..=18 * HOUR)?;
    if !ns.is_multiple_of(SECOND) {
        let remedy = format!("write \"{}s\"", ns / SECOND);
        return refused(format!("\"{text}\" is not a whole number of seconds"), remedy);
    }
    Ok((ns / SECOND) as u16)
}

fn time(text: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, Refused> {
    let unit_at = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let Some(decimal) = Decimal::parse(number) else {
        return refused(format!("\"{text}\" is not a time"), LIKE_A_TIME);
    };
    let scale = match unit {
        "ms" => MILLISECOND,
        "s" => SECOND,
        "m" => 60 * SECOND,
        "h" => HOUR,
        "" => return refused(format!("\"{text}\" has no unit"), format!("write \"{text}s\" or \"{text}ms\"")),
        other => {
            let meant = ["ms", "s", "m", "h"].into_iter().find(|unit| other.trim().to_lowercase().starts_with(unit));
            let remedy = meant.map_or(LIKE_A_TIME.to_owned(), |unit| format!("write \"{number}{unit}\""));
            return refused(format!("\"{text}\" has an unknown unit"), remedy);
        }
    };
    match decimal.times(scale) {
        Some(ns) if range.contains(&ns) => Ok(ns),
        Some(ns) if ns < *range.start() => {
            refused(format!("\"{text}\" is too short"), format!("write at least \"{}\"", as_time(*range.start())))
        }
        _ => refused(format!("\"{text}\" is too long"), format!("write at most \"{}\"", as_time(*range.end()))),
    }
}

/// Nanoseconds as an operator writes them, in the largest unit that leaves no fraction.
pub(crate) fn as_time(ns: u64) -> String {
    let units = [(HOUR, "h"), (60 * SECOND, "m"), (SECOND, "s"), (MILLISECOND, "ms")];
    let whole = units.into_iter().find(|(scale, _)| ns.is_multiple_of(*scale)).unwrap_or((1, "ns"));
    format!("{}{}", ns / whole.0, whole.1)
}

/// Parts per million as an operator writes them.
pub fn as_percent(ppm: u64) -> String {
    let fraction = format!("{:04}", ppm % 10_000);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{}{point}{fraction}%", ppm / 10_000)
}

/// digits / 10^decimals
struct Decimal {
    digits: u128,
    decimals: u32,
}

impl Decimal {
    fn parse(text: &str) -> Option<Self> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(whole) || !is_number(fraction) {
            return None;
        }
        let fraction = fraction.trim_end_matches('0');
        let whole = whole.trim_start_matches('0');
        // 18 digits on either side are more than any quantity here has; with them nothing below overflows.
        if whole.len() > 18 || fraction.len() > 18 {
            return None;
        }
        let digits = format!("0{whole}{fraction}").parse().ok()?;
        Some(Self { digits, decimals: u32::try_from(fraction.len()).ok()? })
    }

    /// Exactly, or not at all.
    fn times(&self, scale: u64) -> Option<u64> {
        let product = self.digits.checked_mul(u128::from(scale))?;
        let divisor = 10u128.pow(self.decimals);
        if product % divisor != 0 {
            return None;
        }
        u64::try_from(product / divisor).ok()
    }
}
