// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How quantities look to people: short, with their unit. Programs read `--json`, where numbers are raw.

/// Parts per million of the machine, in the words of the policy: `60%`.
pub fn percent(ppm: u32) -> String {
    let digits = format!("{}.{:04}", ppm / 10_000, ppm % 10_000);
    format!("{}%", digits.trim_end_matches('0').trim_end_matches('.'))
}

/// A limit: a dash where there is none.
pub fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

/// `1.234 s`, `56.7 ms`: at most four digits that count.
pub fn duration(ns: u64) -> String {
    match ns {
        0 => "0".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", scaled(ns as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", scaled(ns as f64 / 1e6)),
        _ => format!("{:.3} s", ns as f64 / 1e9),
    }
}

/// Powers of 1024, as in the policy: `512`, `1.5K`, `3G`.
pub fn bytes(bytes: u64) -> String {
    prefixed(bytes as f64, 1024.0)
}

/// Powers of 1000: `10Mbit`.
pub fn bit_rate(bits: u64) -> String {
    format!("{}bit", prefixed(bits as f64, 1000.0))
}

/// Powers of 1000: `999`, `12.3K`.
pub fn count(count: u64) -> String {
    prefixed(count as f64, 1000.0)
}

/// Events in a second; what is not zero never looks like zero.
pub fn rate(per_second: f64) -> String {
    match per_second {
        rate if rate <= 0.0 => "0".to_owned(),
        rate if rate < 0.1 => "<0.1".to_owned(),
        rate if rate < 9.95 => format!("{rate:.1}"),
        rate => prefixed(rate.round(), 1000.0),
    }
}

/// A part of the whole machine, in percent with one decimal.
pub fn part(fraction: f64) -> String {
    match fraction * 100.0 {
        percent if percent <= 0.0 => "0".to_owned(),
        percent if percent < 0.05 => "<0.1".to_owned(),
        percent => format!("{percent:.1}"),
    }
}

fn prefixed(value: f64, base: f64) -> String {
    let mut value = value;
    let mut prefix = "";
    for next in ["K", "M", "G", "T", "P", "E"] {
        // What would be rounded up to the base belongs to the next prefix.
        if value < base - 0.5 {
            break;
        }
        value /= base;
        prefix = next;
    }
    match prefix {
        "" => format!("{value:.0}"),
        _ => format!("{}{prefix}", scaled(value)),
    }
}

/// Three digits that count, without zeros at the end.
fn scaled(value: f64) -> String {
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        return format!("{value:.0}");
    };
    let digits = format!("{value:.decimals$}");
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// With its noun, as 1 container or 2 containers.
pub fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_read_as_in_the_policy() {
        let shown = [600_000, 333_333, 5_000, 1, 0, 1_000_000].map(percent);
        assert_eq!(shown, ["60%", "33.3333%", "0.5%", "0.0001%", "0%", "100%"]);
    }

    #[test]
    fn durations_have_three_digits_below_a_second() {
        let shown = [0, 999, 1_500, 56_780_000, 1_234_567_890, 999_999].map(duration);
        assert_eq!(shown, ["0", "999 ns", "1.5 us", "56.8 ms", "1.235 s", "1000 us"]);
    }

    #[test]
    fn a_number_is_never_rounded_up_to_its_base() {
        assert_eq!([1023, 1024, 1536, 1_048_575, 3 << 30].map(bytes), ["1023", "1K", "1.5K", "1M", "3G"]);
        assert_eq!([999, 1_000, 12_345, 999_999].map(count), ["999", "1K", "12.3K", "1M"]);
        assert_eq!(bit_rate(10_000_000), "10Mbit");
    }

    #[test]
    fn what_is_not_zero_does_not_look_like_zero() {
        assert_eq!([0.0, 0.01, 0.5, 9.96, 1234.0].map(rate), ["0", "<0.1", "0.5", "10", "1.23K"]);
        assert_eq!([0.0, 0.000_1, 0.5, 1.0].map(part), ["0", "<0.1", "50.0", "100.0"]);
    }
}
