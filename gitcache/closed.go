package gitcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/policy"
)

// command is one git process under the closed configuration.
type command struct {
	args  []string
	env   []string // GIT_DIR and the like
	stdin []byte
	// input is read instead of stdin; output gets standard output as it comes.
	input  io.Reader
	output io.Writer
	// bounded limits git's memory: what it reads is hostile. It takes writes.
	bounded bool
	// locks are inherited by git, so that a lock outlives this process as long
	// as its git does: a successor never cleans up under a writer's hands.
	locks []*lockFile
	// network lets proxy, CA and ssh-agent variables through.
	network bool
	// writes gives new files the modes of umask 022, whatever ours is: the
	// Worker of a pristine tree is another user on disk.
	writes bool
	// target is a directory on the file system that git writes to; "" is the
	// cache's own.
	target string
	onLine func(line string) // each line of stderr, progress included
	secret string            // never shown
}

const (
	maxStderr = 16 << 10
	maxStdout = 256 << 20
	maxMemory = "4194304" // KiB of address space
)

// closedConfig goes onto every command line, where it overrides any file.
// core.hooksPath and core.fsmonitor stop the two things that even `status`
// runs; core.attributesFile and excludesFile default to files in the home
// directory, which GIT_CONFIG_GLOBAL does not cover.
var closedConfig = []string{
	"core.hooksPath=/dev/null",
	"core.fsmonitor=false",
	"core.attributesFile=/dev/null",
	"core.alternateRefsCommand=",
	"core.askPass=",
	"core.symlinks=true",
	"core.protectHFS=true",
	"core.protectNTFS=true",
	"core.untrackedCache=false",
	"credential.helper=",
	"diff.external=",
	"gc.auto=0",
	"maintenance.auto=false",
	"index.version=2",
	"index.skipHash=false",
	"index.sparse=false",
	"submodule.recurse=false",
	"fetch.recurseSubmodules=false",
	"fetch.writeCommitGraph=false",
	"fetch.unpackLimit=1", // a pack is fsynced as a whole, loose objects are not
	"transfer.fsckObjects=true",
	"transfer.bundleURI=false",
	"fetch.fsck.zeroPaddedFilemode=warn", // old tools wrote them; nothing can be hidden by it
	"fetch.fsck.badTimezone=warn",
	"http.followRedirects=initial",
	"protocol.allow=never",
	"protocol.version=2",
	"log.showSignature=false",
	"advice.detachedHead=false",
}

// environment is everything git sees of ours. HOME is a place that cannot
// exist: ~/.netrc, ~/.config/git and ~/.ssh/config by $HOME stay unread.
func (c *Cache) environment(cmd command) []string {
	env := append(cmd.env,
		"PATH="+childPath,
		"HOME=/nonexistent",
		"LC_ALL=C",
		"GIT_CONFIG_NOSYSTEM=1",
		"GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_ATTR_NOSYSTEM=1",
		"GIT_TERMINAL_PROMPT=0",
		"GIT_ASKPASS=/bin/false",
		"SSH_ASKPASS=/bin/false",
		"SSH_ASKPASS_REQUIRE=never",
		"GIT_SSH_COMMAND=ssh -oBatchMode=yes -oStrictHostKeyChecking=yes -oClearAllForwardings=yes -oConnectTimeout=60 -oServerAliveInterval=40",
		"GIT_SSH_VARIANT=ssh",
		"GIT_NO_REPLACE_OBJECTS=1",
		"GIT_NO_LAZY_FETCH=1", // a promisor source's remote.*.uploadpack is a command (CVE-2024-32004)
		"GIT_OPTIONAL_LOCKS=0",
		"GIT_PAGER=cat",
		"GIT_EDITOR=/bin/false",
		"GIT_FLUSH=0",
	)
	if cmd.network {
		for _, k := range networkVariables {
			if v, ok := os.LookupEnv(k); ok {
				env = append(env, k+"="+v)
			}
		}
	}
	return env
}

const childPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var networkVariables = []string{
	"SSH_AUTH_SOCK", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY",
	"all_proxy", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH",
}

func (c *Cache) arguments(cmd command) []string {
	var args []string
	for _, kv := range closedConfig {
		args = append(args, "-c", kv)
	}
	if cmd.network {
		args = append(args, "-c", "http.lowSpeedLimit=1", "-c", fmt.Sprintf("http.lowSpeedTime=%d", int(c.stall.Seconds())))
	}
	for _, p := range c.rules.Load().protocols {
		args = append(args, "-c", "protocol."+p+".allow=always")
	}
	return append(args, cmd.args...)
}

// gitError is a git command that ran and failed. It names host paths.
type gitError struct {
	Command string
	Exit    int
	Stderr  string
	full    policy.Code // the file system that it wrote to, or a quota, was full right after
}

func (e *gitError) Error() string {
	return fmt.Sprintf("git %s: exit status %d: %s", e.Command, e.Exit, e.Stderr)
}

// stderrHas reports whether err is a gitError that printed one of the texts.
func stderrHas(err error, texts ...string) bool {
	var ge *gitError
	if !errors.As(err, &ge) {
		return false
	}
	for _, t := range texts {
		if strings.Contains(ge.Stderr, t) {
			return true
		}
	}
	return false
}

// run starts git in a process group of its own and returns its stdout. When
// ctx ends the whole group is killed; when this process dies so does git.
func (c *Cache) run(ctx context.Context, cmd command) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	name, args := c.git, c.arguments(cmd)
	if cmd.writes {
		// umask(2) is one per process, so only a child's can be set safely.
		script := `umask 022; exec "$@"`
		if cmd.bounded {
			script = "ulimit -v " + maxMemory + "; " + script
		}
		args = append([]string{"-c", script, "sh", name}, args...)
		name = "/bin/sh"
	}
	stdout := &limited{max: maxStdout}
	stderr := &lines{each: cmd.onLine, secret: cmd.secret}
	x := exec.CommandContext(ctx, name, args...)
	x.Dir = "/"
	x.Env = c.environment(cmd)
	x.Stdout, x.Stderr = stdout, stderr
	if cmd.output != nil {
		x.Stdout = cmd.output
	}
	switch {
	case cmd.input != nil:
		x.Stdin = cmd.input
	case cmd.stdin != nil:
		x.Stdin = bytes.NewReader(cmd.stdin)
	}
	for _, l := range cmd.locks {
		if l != nil {
			x.ExtraFiles = append(x.ExtraFiles, l.f)
		}
	}
	x.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	x.Cancel = func() error { return unix.Kill(-x.Process.Pid, unix.SIGKILL) }
	x.WaitDelay = 5 * time.Second
	err := runOnOneThread(x)
	stderr.flush()
	c.spawns.Add(1)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case stdout.over:
		return nil, fmt.Errorf("git %s: output over %d bytes", cmd.args[0], maxStdout)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return stdout.Bytes(), &gitError{Command: subcommand(cmd.args), Exit: exit.ExitCode(), Stderr: stderr.text(), full: c.diskFull(cmd, stderr.text())}
	}
	c.log.Debug("git", "command", subcommand(cmd.args), "error", err)
	return stdout.Bytes(), err
}

// runOnOneThread keeps the thread that starts the child until it has ended:
// PR_SET_PDEATHSIG fires when the parent *thread* dies, prctl(2).
func runOnOneThread(x *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return x.Run()
}

func subcommand(args []string) string {
	for i := 0; i < len(args); i++ {
		if args[i] == "-c" {
			i++
		} else if !strings.HasPrefix(args[i], "-") {
			return args[i]
		}
	}
	return ""
}

// limited is a buffer that stops growing at max.
type limited struct {
	bytes.Buffer
	max  int
	over bool
}

func (b *limited) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.max {
		b.over = true
		return 0, io.ErrShortWrite
	}
	return b.Buffer.Write(p)
}

// lines splits stderr at newlines and carriage returns, and keeps the last
// maxStderr bytes of what is not progress.
type lines struct {
	each   func(string)
	secret string
	part   []byte
	kept   []byte
}

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for {
		i := bytes.IndexAny(p, "\r\n")
		if i < 0 {
			break
		}
		l.part = append(l.part, p[:i]...)
		l.line(p[i] == '\n')
		p = p[i+1:]
	}
	if l.part = append(l.part, p...); len(l.part) > maxStderr {
		l.part = l.part[:maxStderr]
	}
	return n, nil
}

func (l *lines) line(whole bool) {
	s := string(l.part)
	l.part = l.part[:0]
	if strings.TrimSpace(s) == "" {
		return
	}
	if l.each != nil {
		l.each(s)
	}
	if whole {
		l.kept = append(append(l.kept, s...), '\n')
		if over := len(l.kept) - maxStderr; over > 0 {
			l.kept = l.kept[over:]
		}
	}
}

func (l *lines) flush() { l.line(true) }

func (l *lines) text() string {
	s := strings.TrimSpace(string(l.kept))
	if l.secret != "" {
		s = strings.ReplaceAll(s, l.secret, "***")
	}
	return s
}

// findGit looks only in the fixed PATH: the caller's may hold a directory
// that somebody else can write.
func findGit(name string) (string, error) {
	if filepath.IsAbs(name) {
		return name, unix.Access(name, unix.X_OK)
	}
	if name == "" {
		name = "git"
	}
	for _, dir := range filepath.SplitList(childPath) {
		p := filepath.Join(dir, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && unix.Access(p, unix.X_OK) == nil {
			return p, nil
		}
	}
	return "", exec.ErrNotFound
}
