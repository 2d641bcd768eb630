// SPDX-License-Identifier: Apache-2.0 OR MIT
// Clients of Go's own net/http, half of them of the high class. Usage: client HOST PORT each|persistent CLIENTS REQUESTS
// Port 443 is TLS. Each request has a path of its own, which must be the answer; every seventh brings a body. Says what went wrong.
package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"
)

func main() {
	mode := os.Args[3]
	clients, _ := strconv.Atoi(os.Args[4])
	requests, _ := strconv.Atoi(os.Args[5])
	wrong := make(chan string, clients*requests)
	var all sync.WaitGroup
	for number := range clients {
		all.Add(1)
		go func() {
			defer all.Done()
			source := net.ParseIP(fmt.Sprintf("10.77.%d.%d", 1+number%2, 1+number/2))
			dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: source}, Timeout: time.Minute}
			transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: mode == "each"}
			transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
			client := &http.Client{Transport: transport, Timeout: time.Minute}
			for n := range requests {
				path := fmt.Sprintf("/go-%s-%d-%d", mode, number, n)
				method, body := "GET", []byte(nil)
				if n%7 == 3 {
					method, body = "POST", bytes.Repeat([]byte("b"), 100*n%9000+1)
				}
				if answer := ask(client, method, path, body); answer != path {
					wrong <- path + ": " + answer
				}
			}
		}()
	}
	all.Wait()
	close(wrong)
	failed := false
	for one := range wrong {
		fmt.Println(one)
		failed = true
	}
	if failed {
		os.Exit(1)
	}
}

func ask(client *http.Client, method string, path string, body []byte) string {
	scheme := "http://"
	if os.Args[2] == "443" {
		scheme = "https://"
	}
	url := scheme + net.JoinHostPort(os.Args[1], os.Args[2]) + path
	request, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return err.Error()
	}
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	if response.StatusCode != 200 {
		return response.Status
	}
	return string(answer)
}
