package runtime

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/internal/secret"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

const opSecret = "runtime.secret"

// SecretConfig is where the value of one handle is kept, and what may be done with
// it. The value itself is never in config.toml.
type SecretConfig struct {
	// One of these: a file's absolute path; the name of a credential that systemd has
	// loaded for the service (LoadCredential= in systemd.exec(5)); a command, which
	// prints the value.
	File       string   `toml:"file"`
	Credential string   `toml:"credential"`
	Command    []string `toml:"command"`
	// TimeLimit of the command is a duration such as "5s"; "" is ten seconds.
	TimeLimit string `toml:"time_limit"`
	// As are the ways to deliver it: file and env by default, and http-header alone
	// where Hosts are named.
	As []policy.SecretDelivery `toml:"as"`
	// Hosts are those that a header with it may go to, as a policy names them.
	Hosts []string `toml:"hosts"`
	// Workspaces may use it; none named are all.
	Workspaces []policy.WorkspaceID `toml:"workspaces"`
}

const secretTimeLimit = 10 * time.Second

func (c SecretConfig) limit() (time.Duration, error) {
	if c.TimeLimit == "" {
		return secretTimeLimit, nil
	}
	d, err := time.ParseDuration(c.TimeLimit)
	if err == nil && (d < time.Millisecond || d > 10*time.Minute) {
		err = errors.New("not from 1ms to 10m")
	}
	return d, err
}

// validate says what is wrong with it, "" for nothing.
func (c SecretConfig) validate() string {
	stores := 0
	for _, named := range []bool{c.File != "", c.Credential != "", len(c.Command) > 0} {
		if named {
			stores++
		}
	}
	switch {
	case stores != 1:
		return "needs one of file, credential and command"
	case c.File != "" && (!path.IsAbs(c.File) || strings.ContainsRune(c.File, 0)):
		return "its file is not an absolute path"
	case c.Credential != "" && (strings.ContainsAny(c.Credential, "/\x00") || c.Credential == "." || c.Credential == ".."):
		return "its credential is not a plain name"
	case len(c.Command) > 0 && (policy.ValidateCommand(c.Command) != nil || !path.IsAbs(c.Command[0])):
		return "its command does not begin with an absolute path"
	case c.TimeLimit != "" && len(c.Command) == 0:
		return "a time_limit goes with a command"
	case slices.Contains(c.As, policy.SecretHTTPHeader) && len(c.Hosts) == 0:
		return "http-header needs hosts, to which the header may go"
	}
	if _, err := c.limit(); err != nil {
		return "its time_limit is no duration from 1ms to 10m"
	}
	for _, as := range c.As {
		switch as {
		case policy.SecretFile, policy.SecretEnv, policy.SecretHTTPHeader:
		default:
			return strconv.Quote(string(as)) + " is not file, env or http-header"
		}
	}
	for _, h := range c.Hosts {
		if !policy.IsHostPort(h) {
			return strconv.Quote(h) + " is no host"
		}
	}
	for _, w := range c.Workspaces {
		if !policy.ValidID(string(w)) {
			return strconv.Quote(string(w)) + " is no workspace's id"
		}
	}
	return ""
}

// allows refuses a use that the operator has not foreseen.
func (c SecretConfig) allows(s policy.Secret, workspace policy.WorkspaceID) error {
	as := c.As
	switch {
	case len(as) == 0 && len(c.Hosts) > 0:
		as = []policy.SecretDelivery{policy.SecretHTTPHeader}
	case len(as) == 0:
		as = []policy.SecretDelivery{policy.SecretFile, policy.SecretEnv}
	}
	refuse := func(format string, args ...any) error {
		return policy.Errorf(policy.CodeSecretRefused, opSecret, format, args...).With("secret", string(s.Handle))
	}
	switch {
	case !slices.Contains(as, s.As):
		return refuse("the secret %s may not be delivered as %s", s.Handle, s.As)
	case s.As == policy.SecretHTTPHeader && !slices.Contains(c.Hosts, s.Host):
		return refuse("the secret %s may not go to %s", s.Handle, policy.Printable(s.Host))
	case len(c.Workspaces) > 0 && !slices.Contains(c.Workspaces, workspace):
		return refuse("the secret %s is not for the workspace %s", s.Handle, workspace)
	}
	return nil
}

// checkSecretConfig checks every [secrets.HANDLE] of config.toml.
func (c Config) checkSecretConfig() error {
	for handle, s := range c.Secrets {
		why := s.validate()
		if !policy.ValidID(string(handle)) {
			why = "is no handle: lower-case letters, digits, dot, dash and underscore"
		}
		if why != "" {
			return policy.Errorf(policy.CodeConfigInvalid, "runtime.config", "secrets.%s %s", policy.Printable(string(handle)), why)
		}
	}
	return nil
}

// CallerSecret is a secret that the caller of `yoi run` keeps: one of the fields.
type CallerSecret struct {
	File string // a path
	Env  string // a variable of the caller's
	// Command is for /bin/sh, in the caller's directory.
	Command string
}

// checkSecrets decides, before anything is made, whether each secret of a policy is
// one that this Runtime has and that this workspace may use so. No value is read.
func (r *Runtime) checkSecrets(list []policy.Secret, workspace policy.WorkspaceID) error {
	for _, s := range list {
		if _, ok := r.callerSecrets[s.Handle]; ok {
			continue
		}
		c, ok := r.config().Secrets[s.Handle]
		if !ok {
			return policy.Errorf(policy.CodeSecretUnknown, opSecret, "no secret has the handle %s", s.Handle).With("secret", string(s.Handle))
		}
		if err := c.allows(s, workspace); err != nil {
			return err
		}
	}
	return nil
}

// openSecrets reads the values of a policy's secrets from their stores, anew for
// each launch: nothing of them is kept. The caller wipes the set.
func (r *Runtime) openSecrets(ctx context.Context, a registry.Allocation) (set secret.Set, uses []policy.SecretUse, err error) {
	list := a.SandboxPolicy.Secrets
	if err := r.checkSecrets(list, a.WorkspaceID); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			set.Wipe()
			set = nil
		}
	}()
	for _, s := range list {
		v, store, err := r.readSecret(ctx, s.Handle)
		if err != nil {
			return set, nil, err
		}
		set = append(set, secret.Given{Secret: s, Value: v})
		if err := fits(s, v); err != nil {
			return set, nil, err
		}
		uses = append(uses, policy.SecretUse{Handle: s.Handle, As: s.As, Name: s.Target(), Host: s.Host, Store: store})
	}
	return set, uses, nil
}

// giveSecrets reads the secrets of a Worker to be and puts those that go into the
// sandbox into files.Secrets, a sealed memfd: what is read here is wiped here.
func (r *Runtime) giveSecrets(ctx context.Context, a registry.Allocation, l *launch, files *helper.LaunchFiles) ([]policy.SecretUse, error) {
	if l.unrecorded || len(a.SandboxPolicy.Secrets) == 0 {
		return nil, nil
	}
	set, uses, err := r.openSecrets(ctx, a)
	if err != nil {
		return nil, err
	}
	defer set.Wipe()
	inside, headers := set.Split()
	if len(headers) > 0 {
		if files.Headers, err = headers.Pack(); err != nil {
			return nil, policy.Errorf(policy.CodeInternal, opSecret, "the secrets cannot be passed on").Because(err)
		}
	}
	l.secrets = inside.Secrets()
	if len(inside) > 0 {
		if files.Secrets, err = inside.Pack(); err != nil {
			return nil, policy.Errorf(policy.CodeInternal, opSecret, "the secrets cannot be passed on").Because(err)
		}
	}
	return uses, nil
}

// fits refuses a value that its place cannot hold, or that would mean more there
// than a value: a header's line end would begin another header.
func fits(s policy.Secret, v *secret.Value) error {
	refuse := func(why string) error {
		return policy.Errorf(policy.CodeSecretInvalid, opSecret, "the secret %s cannot be delivered as %s: %s", s.Handle, s.As, why).With("secret", string(s.Handle))
	}
	if s.As == policy.SecretFile {
		return nil
	}
	v.TrimNewline()
	for _, b := range v.Bytes() {
		switch {
		case b == 0:
			return refuse("it holds a NUL")
		case s.As == policy.SecretHTTPHeader && (b < ' ' && b != '\t' || b == 0x7f):
			return refuse("it holds a line end or another control character")
		}
	}
	if s.As == policy.SecretHTTPHeader && len(v.Bytes()) > 8<<10 {
		return refuse("it is larger than 8 KiB")
	}
	return nil
}

// readSecret reads one value. Errors name the handle and the kind of store; what a
// command said could be the value, so nobody is told.
func (r *Runtime) readSecret(ctx context.Context, handle policy.SecretHandle) (v *secret.Value, store string, err error) {
	unavailable := func(err error, format string, args ...any) *policy.Diagnostic {
		if errors.Is(err, secret.ErrTooLarge) {
			return policy.Errorf(policy.CodeSecretInvalid, opSecret, "the secret %s is larger than %d bytes", handle, policy.MaxSecretBytes).With("secret", string(handle))
		}
		return policy.Errorf(policy.CodeSecretUnavailable, opSecret, "the secret %s: "+format, append([]any{handle}, args...)...).With("secret", string(handle)).Because(err)
	}
	if c, ok := r.callerSecrets[handle]; ok {
		const store = "caller"
		switch {
		case c.Env != "":
			s, ok := os.LookupEnv(c.Env)
			if !ok {
				return nil, store, unavailable(nil, "the caller has no variable %s", policy.Printable(c.Env))
			}
			v, err = secret.Read(strings.NewReader(s))
		case c.Command != "":
			v, err = commandSecret(ctx, []string{"/bin/sh", "-c", c.Command}, secretTimeLimit)
			if err != nil {
				return nil, store, unavailable(err, "its command failed")
			}
		default:
			v, err = fileSecret(c.File, false)
		}
		if err != nil {
			return nil, store, unavailable(err, "it cannot be read")
		}
		return v, store, nil
	}
	c, ok := r.config().Secrets[handle]
	switch {
	case !ok: // it was there when the workspace was made
		return nil, store, policy.Errorf(policy.CodeSecretUnknown, opSecret, "no secret has the handle %s any more", handle).With("secret", string(handle))
	case c.File != "":
		store = "file"
		v, err = fileSecret(c.File, true)
	case c.Credential != "":
		store = "credential"
		dir := os.Getenv("CREDENTIALS_DIRECTORY")
		if dir == "" {
			return nil, store, unavailable(nil, "systemd has loaded no credentials for this service").
				WithHint("Add LoadCredential=%s:PATH to the service: systemctl edit yoi-runtimed.", c.Credential)
		}
		v, err = fileSecret(filepath.Join(dir, c.Credential), false)
	default:
		store = "command"
		limit, _ := c.limit() // checked when it was configured
		if v, err = commandSecret(ctx, c.Command, limit); err != nil {
			return nil, store, unavailable(err, "its command failed")
		}
	}
	if errors.Is(err, errExposed) {
		return nil, store, unavailable(err, "its file can be read or written by every user").WithHint("Take the rights of others away: chmod o-rwx.")
	}
	if err != nil {
		return nil, store, unavailable(err, "its %s cannot be read", store)
	}
	return v, store, nil
}

var (
	errExposed    = errors.New("the file is open to others")
	errNotRegular = errors.New("not a regular file")
)

// fileSecret reads a file. Symbolic links are followed: the path is the operator's
// own, and stores swap values by swapping links.
func fileSecret(name string, private bool) (*secret.Value, error) {
	f, err := os.OpenFile(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, &fs.PathError{Op: "read", Path: name, Err: errNotRegular}
	case private && st.Mode().Perm()&0o007 != 0:
		return nil, &fs.PathError{Op: "read", Path: name, Err: errExposed}
	}
	return secret.Read(f)
}

// commandSecret runs a command of the operator's, or the caller's, and reads what
// it prints. Its messages are thrown away. It ends, with what it started in its own
// process group, when its time is over.
func commandSecret(ctx context.Context, argv []string, limit time.Duration) (*secret.Value, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer pr.Close()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout = pw
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	err = cmd.Start()
	pw.Close()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = pr.SetReadDeadline(time.Now()) }) // something else may hold the pipe
	v, rerr := secret.Read(pr)
	stop()
	if rerr != nil {
		_ = cmd.Cancel()
	}
	werr := cmd.Wait()
	if err := errors.Join(rerr, ctx.Err(), werr); err != nil {
		v.Wipe()
		return nil, err
	}
	if len(v.Bytes()) == 0 {
		v.Wipe()
		return nil, io.ErrUnexpectedEOF
	}
	return v, nil
}
