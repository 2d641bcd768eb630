# SPDX-License-Identifier: Apache-2.0 OR MIT
# Reads what cargo test printed and sums all test binaries up in one line. Fails if a test failed, if a binary died
# before its result, or if nothing ran.

# The binaries themselves, and the documentation's examples of a crate. A test may start itself again and show what
# that printed, so a binary's result is the last one before the next binary.
/^ *(Running|Doc-tests) / { take(); started++ }

/^test result: / { result = $0 }

/^test .* \.\.\. FAILED$/ && !seen[$2]++ { names[++count] = $2 }

# What a failed test said first, for who sees the end of a long log alone.
/^---- .* stdout ----$/ { said = $2; lines[said] = 0 }
/^stack backtrace:$/ || /^failures:$/ || /^note: run with/ { said = "" }
said != "" && !/^---- / && !/^$/ && lines[said] < 8 { words_of[said, ++lines[said]] = $0 }

function take(    words, i, n) {
	if (result == "") return
	ended++
	n = split(result, words, " ")
	for (i = 1; i < n; i++) {
		if (words[i + 1] ~ /^passed/) passed += words[i]
		if (words[i + 1] ~ /^failed/) failed += words[i]
	}
	result = ""
}

END {
	take()
	for (i = 1; i <= count; i++) {
		print "failed: " names[i]
		for (line = 1; line <= lines[names[i]]; line++) print "  " words_of[names[i], line]
	}
	if (started > ended) {
		printf "%d test binaries died before their result\n", started - ended
		failed += started - ended
	}
	printf "fief: %d passed, %d failed\n", passed, failed
	exit failed > 0 || passed == 0
}
