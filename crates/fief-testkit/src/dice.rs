// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Numbers without a pattern, the same ones in every run: SplitMix64, a step of a counter and a mix of it (Steele, Lea and
//! Flood, "Fast splittable pseudorandom number generators", 2014).

/// Thrown with the same seed, they fall the same way.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed)
    }

    /// Any number of 64 bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// One below `sides`, which is not 0.
    pub fn roll(&mut self, sides: usize) -> usize {
        (self.number() % sides as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_reference_implementation() {
        let mut dice = Dice::new(1_234_567);
        let numbers = [(); 3].map(|()| dice.number());
        assert_eq!(numbers, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn the_same_seed_throws_the_same_dice() {
        let throws = |seed| std::iter::repeat_n((), 100).scan(Dice::new(seed), |dice, ()| Some(dice.roll(1000)));
        assert!(throws(7).eq(throws(7)));
        assert!(!throws(7).eq(throws(8)));
        assert!(throws(7).all(|side| side < 1000));
    }
}
