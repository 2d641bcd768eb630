// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the agent frees goes back to the machine. A reading of many containers takes some megabytes for some milliseconds; the
//! allocator would keep as much for each thread that ever made one.

use nix::libc;

/// Larger ones are mappings of their own, and gone when they are freed.
const LARGEST: i32 = 64 * 1024;

/// One arena, since threads seldom allocate at a time, and mappings for what is large.
pub(crate) fn keep_little() {
    // SAFETY: these set two numbers of the allocator; one that does not know them says so, and goes on as it was.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST);
    }
}

/// Gives the pages of the program's text back: most of them only the start needed. They are the file's, so what runs again is there again.
pub(crate) fn forget_start() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Some((begin, end)) = maps.lines().filter_map(text).find(|(begin, end)| {
        // the mapping that this function is in
        (*begin..*end).contains(&(forget_start as *const () as usize))
    }) else {
        return;
    };
    // SAFETY: a private mapping of a file that nobody can write, so every page is as the file has it, now and when it is read again.
    unsafe { libc::madvise(begin as *mut libc::c_void, end - begin, libc::MADV_DONTNEED) };
}

/// Begin and end of a mapping that is run and cannot be written.
fn text(line: &str) -> Option<(usize, usize)> {
    let (range, rest) = line.split_once(' ')?;
    let (begin, end) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    rest.starts_with("r-xp ").then_some((address(begin)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_that_can_be_written_is_no_text() {
        let line = "55d0c1c00000-55d0c2300000 r-xp 00200000 fe:01 1234 /usr/bin/fief";
        assert_eq!(text(line), Some((0x55d0_c1c0_0000, 0x55d0_c230_0000)));
        for other in ["55d0c1c00000-55d0c2300000 rwxp 0 00:00 0", "55d0c1c00000-55d0c2300000 r--p 0 fe:01 1 /a", ""] {
            assert_eq!(text(other), None, "{other}");
        }
    }

    #[test]
    fn what_runs_is_there_again() {
        forget_start();
        assert_eq!(text("1000-2000 r-xp "), Some((0x1000, 0x2000)));
    }
}
