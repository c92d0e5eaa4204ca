// Package agent runs commands in a virtual machine for a test outside of it: requests
// and answers are lines of JSON over a serial port, any number of them at once.
//
// It is what ssh would be without a network, and without a daemon, a login or a session
// that would be part of what is tested.
package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Port is the name of the serial port.
const Port = "yoi-agent"

// Request is a command to run.
type Request struct {
	ID   int
	Args []string
	User string
	Env  []string `json:",omitempty"`
}

// Reply tells how the command with the request's id ended. The first one, with id 0,
// says that the agent is there.
type Reply struct {
	ID             int
	Code           int
	Stdout, Stderr []byte
	// Err says why it did not start.
	Err string `json:",omitempty"`
}

// environment is what every command has, with its user's HOME before it.
var environment = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "LANG=C.UTF-8"}

// Serve answers requests until there are no more.
func Serve(port io.ReadWriter) error {
	var mu sync.Mutex
	enc := json.NewEncoder(port)
	send := func(r Reply) error {
		mu.Lock()
		defer mu.Unlock()
		return enc.Encode(r)
	}
	if err := send(Reply{}); err != nil {
		return err
	}
	for dec := json.NewDecoder(port); ; {
		var q Request
		if err := dec.Decode(&q); err != nil {
			return err
		}
		go func() { _ = send(run(q)) }() // who does not hear it has gone
	}
}

func run(q Request) Reply {
	r := Reply{ID: q.ID}
	cmd := exec.Command(q.Args[0], q.Args[1:]...)
	home, who, err := credential(q.User)
	if err != nil {
		r.Err = err.Error()
		return r
	}
	cmd.Dir = "/"
	cmd.Env = append(append([]string{"HOME=" + home, "USER=" + q.User, "LOGNAME=" + q.User}, environment...), q.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who, Setsid: true}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		r.Err = err.Error()
		return r
	}
	r.Code, r.Stdout, r.Stderr = cmd.ProcessState.ExitCode(), stdout.Bytes(), stderr.Bytes()
	return r
}

// credential looks a user up now: it may have been added since the last command.
func credential(name string) (home string, c *syscall.Credential, err error) {
	u, err := user.Lookup(name)
	if err != nil {
		return "", nil, err
	}
	groups, err := u.GroupIds()
	if err != nil {
		return "", nil, err
	}
	c = new(syscall.Credential)
	for _, f := range []struct {
		text string
		to   func(uint32)
	}{{u.Uid, func(n uint32) { c.Uid = n }}, {u.Gid, func(n uint32) { c.Gid = n }}} {
		n, err := strconv.ParseUint(f.text, 10, 32)
		if err != nil {
			return "", nil, err
		}
		f.to(uint32(n))
	}
	for _, g := range groups {
		n, err := strconv.ParseUint(g, 10, 32)
		if err != nil {
			return "", nil, err
		}
		c.Groups = append(c.Groups, uint32(n))
	}
	return u.HomeDir, c, nil
}

// Client is the test's end.
type Client struct {
	port io.ReadWriteCloser

	mu      sync.Mutex
	enc     *json.Encoder
	last    int
	waiting map[int]chan Reply
	err     error // why there are no more answers
}

// Connect waits for the agent to be there.
func Connect(port io.ReadWriteCloser) (*Client, error) {
	c := &Client{port: port, enc: json.NewEncoder(port), waiting: make(map[int]chan Reply)}
	dec := json.NewDecoder(port)
	var hello Reply
	if err := dec.Decode(&hello); err != nil {
		return nil, err
	}
	go c.listen(dec)
	return c, nil
}

func (c *Client) listen(dec *json.Decoder) {
	for {
		var r Reply
		err := dec.Decode(&r)
		c.mu.Lock()
		if err != nil {
			c.err = fmt.Errorf("the machine answers no more: %w", err)
			for id, ch := range c.waiting {
				close(ch)
				delete(c.waiting, id)
			}
			c.mu.Unlock()
			return
		}
		if ch := c.waiting[r.ID]; ch != nil {
			ch <- r
			delete(c.waiting, r.ID)
		}
		c.mu.Unlock()
	}
}

// Do runs a command and waits for its end.
func (c *Client) Do(q Request) (Reply, error) {
	ch := make(chan Reply, 1)
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return Reply{}, c.err
	}
	c.last++
	q.ID = c.last
	c.waiting[q.ID] = ch
	err := c.enc.Encode(q)
	c.mu.Unlock()
	if err != nil {
		return Reply{}, err
	}
	r, ok := <-ch
	switch {
	case !ok:
		c.mu.Lock()
		defer c.mu.Unlock()
		return Reply{}, c.err
	case r.Err != "":
		return r, fmt.Errorf("%s: %s", strings.Join(q.Args, " "), r.Err)
	}
	return r, nil
}

// Close ends the connection; who waits for an answer gets an error.
func (c *Client) Close() error { return c.port.Close() }
