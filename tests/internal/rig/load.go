package rig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Load is how many clients at once use a workspace of a Backend.
type Load struct {
	Workspace, Repository, Token string
	Listing, Creating            int // clients, each with a connection of its own
	Lists, Creates               int // of each client
}

// Times are how long answers took.
type Times []time.Duration

// Of is a quantile of them.
func (d Times) Of(q float64) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[min(int(q*float64(len(s))), len(s)-1)]
}

// Spread is the 99th percentile over the median.
func (d Times) Spread() float64 { return float64(d.Of(0.99)) / float64(d.Of(0.5)) }

// Load has all clients begin at once. Each creation is cleaned up at once, untimed. Any
// answer but success is an error of the test's.
func (b *Backend) Load(t testing.TB, l Load) (lists, creates Times) {
	t.Helper()
	at := b.URL + "/api/w/" + l.Workspace + "/execution-workspaces"
	var mu sync.Mutex
	var all sync.WaitGroup
	begin := make(chan struct{})
	run := func(n, times int, one func(*http.Client) (time.Duration, error), into *Times) {
		for range n {
			all.Go(func() {
				tr := &http.Transport{MaxIdleConnsPerHost: 1}
				defer tr.CloseIdleConnections()
				c := &http.Client{Transport: tr, Timeout: time.Minute}
				<-begin
				for range times {
					took, err := one(c)
					mu.Lock()
					*into = append(*into, took)
					mu.Unlock()
					if err != nil {
						t.Errorf("under load: %v", err)
						return
					}
				}
			})
		}
	}
	run(l.Listing, l.Lists, func(c *http.Client) (time.Duration, error) {
		start := time.Now()
		_, err := l.ask(c, "GET", at, "", 200)
		return time.Since(start), err
	}, &lists)
	run(l.Creating, l.Creates, func(c *http.Client) (time.Duration, error) {
		start := time.Now()
		id, err := l.ask(c, "POST", at, `{"repository_id":"`+l.Repository+`"}`, 201)
		took := time.Since(start)
		if err == nil {
			_, err = l.ask(c, "POST", at+"/"+id+"/cleanup", "{}", 200)
		}
		return took, err
	}, &creates)
	close(begin)
	all.Wait()
	return lists, creates
}

// ask wants a status, and returns the answer's id.
func (l Load) ask(c *http.Client, method, url, body string, status int) (string, error) {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+l.Token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != status {
		return "", fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, b)
	}
	var v struct{ ID string }
	return v.ID, json.Unmarshal(b, &v)
}

// KeptConnections is how many connections to one Runtime a client keeps for later.
const KeptConnections = 16

// Descriptors counts what the process has open.
func (p *Daemon) Descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(p.Pid()), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Goroutines ends the process by QUIT, which makes Go print their stacks, and returns
// those, without Go's own and those of connections that are kept for later requests:
// they are closed by time.
func (p *Daemon) Goroutines(t testing.TB) (stacks []string) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGQUIT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	<-p.exited
	for stack := range strings.SplitSeq(p.Log(), "\n\n") {
		// Number 0 is whatever thread took the signal while it had nothing to run.
		if strings.HasPrefix(stack, "goroutine ") && !strings.HasPrefix(stack, "goroutine 0 ") && !strings.Contains(stack, "net/http.(*persistConn)") && !strings.Contains(stack, "created by runtime.") && !idle(stack) {
			stacks = append(stacks, stack)
		}
	}
	if len(stacks) == 0 {
		t.Fatalf("%s printed no stacks\n%s", p.cmd.Path, p.Log())
	}
	return stacks
}

// idle says that a server waits for a connection's next request, or sends the rest of
// an answer whose handler has ended.
func idle(stack string) bool {
	return strings.Contains(stack, "net/http.(*connReader)") || strings.Contains(stack, "net/http.(*response).finishRequest") || strings.Contains(stack, "net/http.(*conn).serve") && strings.Contains(stack, "Peek")
}
