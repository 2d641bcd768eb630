// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who had which part of the core, and how much work that was. Pure.

use super::policy::{SITES, rest};
use super::{Done, Measured};

impl Done {
    /// Percent of the core.
    pub fn percent(&self) -> f64 {
        self.server + self.programs
    }
}

impl Measured {
    /// Percent of the core that the sites and the background had together; the rest is receive work, which the kernel does in
    /// threads of its own, and what else ran.
    pub fn together(&self) -> f64 {
        self.sites.iter().map(Done::percent).sum::<f64>() + self.background
    }

    /// Percent of what all had together: of each site, and of the background.
    pub fn parts(&self) -> [f64; SITES.len() + 1] {
        let mut parts = [self.background; SITES.len() + 1];
        parts[..SITES.len()].copy_from_slice(&self.sites.map(|site| site.percent()));
        parts.map(|part| 100.0 * part / self.together())
    }

    /// Percent of what all had together: of each site's programs.
    pub fn program_parts(&self) -> [f64; SITES.len()] {
        self.sites.map(|site| 100.0 * site.programs / self.together())
    }

    /// What of a core's time went into work that is done: the texts at their cost, programs and the background by their clocks.
    pub fn work(&self, cost: f64) -> f64 {
        let texts: f64 = self.sites.iter().map(|site| site.texts).sum();
        let computed: f64 = self.sites.iter().map(|site| site.programs).sum();
        texts * cost + (computed + self.background) / 100.0
    }

    /// Seconds of the core that a text takes, receive work and all, where nothing but A's requests is on it.
    pub fn cost(&self) -> f64 {
        let computed: f64 = self.sites.iter().map(|site| site.programs).sum();
        (1.0 - (computed + self.background) / 100.0) / self.sites.iter().map(|site| site.texts).sum::<f64>()
    }
}

/// The largest distance of a site from its share.
pub fn share_error(parts: &[f64; SITES.len() + 1]) -> f64 {
    SITES.iter().zip(parts).map(|(site, part)| (part - site.share).abs()).fold(0.0, f64::max)
}

/// The background's distance from what the shares leave.
pub fn rest_error(parts: &[f64; SITES.len() + 1]) -> f64 {
    (parts[SITES.len()] - rest()).abs()
}

/// The largest distance of a site's programs from theirs.
pub fn program_error(parts: &[f64; SITES.len()]) -> f64 {
    SITES.iter().zip(parts).map(|(site, part)| (part - site.of_programs).abs()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::super::{STEPS, Way};
    use super::*;

    fn measured(sites: [Done; 3], background: f64) -> Measured {
        Measured { way: Way::Fief, step: STEPS[1], round: 0, sites, background, is_disturbed: false }
    }

    fn done(texts: f64, server: f64, programs: f64) -> Done {
        Done { texts, server, programs }
    }

    #[test]
    fn parts_are_of_what_all_had_together() {
        // the kernel had 20 % of the core for itself
        let sites = [done(0.0, 24.0, 12.0), done(0.0, 14.4, 7.2), done(0.0, 9.6, 4.8)];
        let exact = measured(sites, 8.0);
        assert!((exact.together() - 80.0).abs() < 1e-9);
        assert!(share_error(&exact.parts()) < 1e-9 && program_error(&exact.program_parts()) < 1e-9);
        assert!(rest_error(&exact.parts()) < 1e-9);
    }

    #[test]
    fn the_site_that_is_farthest_from_its_share_counts() {
        let off = measured([done(0.0, 30.0, 15.0), done(0.0, 20.0, 9.0), done(0.0, 12.0, 5.0)], 9.0);
        assert!((share_error(&off.parts()) - 2.0).abs() < 1e-9);
        assert!((program_error(&off.program_parts()) - 1.0).abs() < 1e-9);
        assert!((rest_error(&off.parts()) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn work_is_whole_where_the_cost_of_a_text_is_measured() {
        let alone = measured([done(300.0, 55.0, 40.0), Done::default(), Done::default()], 0.0);
        assert!((alone.cost() - 0.002).abs() < 1e-12, "60 % of a second for 300 texts");
        assert!((alone.work(alone.cost()) - 1.0).abs() < 1e-9);
        let beside = measured([done(100.0, 0.0, 20.0), done(50.0, 0.0, 10.0), done(50.0, 0.0, 10.0)], 10.0);
        assert!((beside.work(0.002) - 0.9).abs() < 1e-9);
    }
}
