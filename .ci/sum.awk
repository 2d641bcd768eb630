# SPDX-License-Identifier: Apache-2.0 OR MIT
# Reads what cargo test printed and sums all test binaries up in one line. Fails if a test failed, if a binary died
# before its result, or if nothing ran.

# the binaries themselves, and the documentation's examples of a crate
/^ *(Running|Doc-tests) / { started++ }

/^test result: / {
	ended++
	for (i = 1; i < NF; i++) {
		if ($(i + 1) ~ /^passed/) passed += $i
		if ($(i + 1) ~ /^failed/) failed += $i
	}
}

/^test .* \.\.\. FAILED$/ { names[++count] = $2 }

END {
	for (i = 1; i <= count; i++) print "failed: " names[i]
	if (started > ended) {
		printf "%d test binaries died before their result\n", started - ended
		failed += started - ended
	}
	printf "fief: %d passed, %d failed\n", passed, failed
	exit failed > 0 || passed == 0
}
