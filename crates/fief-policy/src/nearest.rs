// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the word that was meant.

/// Letters of a word that stands for a longer one.
const LEAST_BEGIN: usize = 3;

/// The candidate with the fewest slips of the finger (a letter too many, too few, wrong, or two exchanged), if that is
/// few for the length of the word; else the only one that begins with it. Case and `_` for `-` are no difference.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = plain(word);
    // Nobody means a short word with a long one, and the comparison takes length times length.
    if word.len() > 256 {
        return None;
    }
    let candidates: Vec<&str> = candidates.into_iter().collect();
    let mut begun = candidates.iter().filter(|candidate| plain(candidate).starts_with(&word));
    let begun = begun.next().filter(|_| word.len() >= LEAST_BEGIN && begun.next().is_none()).copied();
    let close = candidates
        .iter()
        .map(|&candidate| (slips(&word, &plain(candidate)), candidate))
        .filter(|&(slips, candidate)| slips <= 1 + candidate.chars().count().min(word.len()) / 4)
        .min_by_key(|&(slips, _)| slips)
        .map(|(_, candidate)| candidate);
    close.or(begun)
}

/// The path that was meant: the first with the same last name, else the nearest.
pub fn nearest_path<'a>(path: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let last = |path: &'a str| path.rsplit('/').next();
    let candidates: Vec<&str> = candidates.into_iter().collect();
    let wanted = path.rsplit('/').next();
    let named = candidates.iter().find(|candidate| last(candidate) == wanted).copied();
    named.or_else(|| nearest(path, candidates))
}

fn plain(word: &str) -> Vec<char> {
    word.to_lowercase().replace('_', "-").chars().collect()
}

/// Edit distance with exchanged neighbours as one slip.
fn slips(left: &[char], right: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for (row, &from) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, &to) in right.iter().enumerate() {
            let mut least =
                (above[column] + usize::from(from != to)).min(above[column + 1] + 1).min(current[column] + 1);
            let exchanged = row > 0 && column > 0 && from == right[column - 1] && left[row - 1] == to;
            if exchanged {
                least = least.min(before[column - 1] + 1);
            }
            current.push(least);
        }
        before = std::mem::replace(&mut above, current);
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::{nearest, nearest_path};

    #[test]
    fn finds_the_path_that_ends_with_the_same_name() {
        let paths = ["shop", "shop/gold", "shop/browse"];
        assert_eq!(nearest_path("gold", paths), Some("shop/gold"));
        assert_eq!(nearest_path("tenant/browse", paths), Some("shop/browse"));
        assert_eq!(nearest_path("shop/gol", paths), Some("shop/gold"));
        assert_eq!(nearest_path("tenant", paths), None);
    }

    #[test]
    fn finds_the_key_behind_a_slip() {
        let keys = ["address", "classes", "client", "copies"];
        assert_eq!(nearest("adress", keys), Some("address"));
        assert_eq!(nearest("clients", keys), Some("client"));
        assert_eq!(nearest("cpoies", keys), Some("copies"));
        assert_eq!(nearest("Address", keys), Some("address"));
        assert_eq!(nearest("not_from", ["from", "not-from"]), Some("not-from"));
    }

    #[test]
    fn finds_the_only_word_that_begins_so() {
        assert_eq!(nearest("prio", ["share", "limit", "weight", "priority"]), Some("priority"));
        assert_eq!(nearest("shop/gol", ["shop", "shop/gold", "shop/browse"]), Some("shop/gold"));
        assert_eq!(nearest("per", ["per-second", "per-source"]), None);
        assert_eq!(nearest("pr", ["priority", "share"]), None);
    }

    #[test]
    fn suggests_nothing_for_a_word_of_its_own() {
        assert_eq!(nearest("timeout", ["address", "classes", "client", "copies"]), None);
        assert_eq!(nearest(&"x".repeat(10_000), ["address"]), None);
    }
}
