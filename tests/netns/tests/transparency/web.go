// SPDX-License-Identifier: Apache-2.0 OR MIT
// A server of Go's own net/http, and a client of it. Usage: web serve ADDRESS | web ask URL CONNECTIONS REQUESTS
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
)

func main() {
	if os.Args[1] == "serve" {
		serve(os.Args[2])
	} else {
		connections, _ := strconv.Atoi(os.Args[3])
		requests, _ := strconv.Atoi(os.Args[4])
		ask(os.Args[2], connections, requests)
	}
}

// Answers with the sum of what was sent.
func serve(address string) {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		io.Copy(sum, r.Body)
		fmt.Fprintf(w, "%x", sum.Sum(nil))
	})
	fmt.Fprintln(os.Stderr, http.ListenAndServe(address, nil))
	os.Exit(1)
}

// Every client keeps its connection; half of the requests are chunked, since their length is not told.
func ask(url string, connections, requests int) {
	var done sync.WaitGroup
	good := make([]int, connections)
	for c := 0; c < connections; c++ {
		done.Add(1)
		go func(c int) {
			defer done.Done()
			client := &http.Client{Transport: &http.Transport{}}
			for r := 0; r < requests; r++ {
				sent := bytes.Repeat([]byte{byte(r)}, 1+r*1000)
				var body io.Reader = bytes.NewReader(sent)
				if r%2 == 1 {
					body = io.MultiReader(body)
				}
				response, err := client.Post(url, "application/octet-stream", body)
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					return
				}
				told, _ := io.ReadAll(response.Body)
				response.Body.Close()
				if string(told) == fmt.Sprintf("%x", sha256.Sum256(sent)) {
					good[c]++
				}
			}
		}(c)
	}
	done.Wait()
	sum := 0
	for _, n := range good {
		sum += n
	}
	fmt.Println(sum)
}
