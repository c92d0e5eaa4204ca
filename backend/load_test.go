package backend

import (
	"fmt"
	"io"
	"net/http"
	"os"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestManyClientsLeaveNothing of their connections, goroutines and descriptors behind,
// streams and refused ones among them.
func TestManyClientsLeaveNothing(t *testing.T) {
	b := newBench(t, func(c *Config) { c.Limits.RequestsPerSecond, c.Limits.Burst = 1e6, 1e6 })
	at := "http://" + b.serve(t).Addr().String()
	ask := func(c *http.Client, method, target, body string, header ...string) (int, error) {
		req, err := http.NewRequest(method, at+target, strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		req.Header.Set("Authorization", "Bearer "+b.token["operator"])
		req.Header.Set("Content-Type", "application/json")
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := c.Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, err
	}
	client := func(work func(*http.Client) error) error {
		tr := &http.Transport{}
		defer tr.CloseIdleConnections()
		return work(&http.Client{Transport: tr, Timeout: time.Minute})
	}
	expect := func(want int, got int, err error) error {
		if err == nil && got != want {
			err = fmt.Errorf("status %d, want %d", got, want)
		}
		return err
	}
	const ews, events = "/api/w/default/execution-workspaces", "text/event-stream"
	list := func(c *http.Client) error {
		for range 5 {
			got, err := ask(c, "GET", ews, "")
			if err := expect(200, got, err); err != nil {
				return err
			}
		}
		got, err := ask(c, "GET", "/api/w/default/workers/wk-0123456789abcdef/logs", "", "Accept", events)
		if err := expect(200, got, err); err != nil {
			return err
		}
		got, err = ask(c, "GET", "/api/w/other", "")
		return expect(404, got, err)
	}
	create := func(c *http.Client) error {
		for range 5 {
			got, err := ask(c, "POST", ews, `{"repository_id":"hello"}`)
			if err := expect(201, got, err); err != nil {
				return err
			}
		}
		return nil
	}
	for _, f := range []func(*http.Client) error{list, create} { // what a first request begins for good
		if err := client(f); err != nil {
			t.Fatal(err)
		}
	}
	descriptors := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	goroutines, files := goruntime.NumGoroutine(), descriptors()
	for same := 0; same < 20; same++ { // until what ends has ended
		time.Sleep(10 * time.Millisecond)
		if g, f := goruntime.NumGoroutine(), descriptors(); g != goroutines || f != files {
			goroutines, files, same = g, f, 0
		}
	}
	var all sync.WaitGroup
	for i := range 220 {
		f := list
		if i%11 == 0 {
			f = create
		}
		all.Go(func() {
			if err := client(f); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := len(b.settings().streams); n != 0 {
		t.Errorf("%d streams hold their places", n)
	}
	deadline := time.Now().Add(20 * time.Second)
	for goruntime.NumGoroutine() > goroutines || descriptors() > files {
		if time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		stacks := make([]byte, 1<<20)
		t.Errorf("%d goroutines and %d descriptors, %d and %d before\n%s", goruntime.NumGoroutine(), descriptors(), goroutines, files, stacks[:goruntime.Stack(stacks, true)])
		break
	}
}
