package backend

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"yoi.dev/yoi-runtime/policy"
)

// Config is the configuration file, TOML. A field that is not known is an error,
// so that a misspelt restriction is never ignored.
type Config struct {
	Listen     ListenConfig               `toml:"listen"`
	Store      string                     `toml:"store"` // the database's path
	Runtimes   map[string]RuntimeConfig   `toml:"runtimes"`
	Workspaces map[string]WorkspaceConfig `toml:"workspaces"`
	Limits     LimitsConfig               `toml:"limits"`
	Sessions   struct {
		// Lifetime of a login, "12h".
		Lifetime string `toml:"lifetime"`
	} `toml:"sessions"`
}

// ListenConfig says where to serve. One of Address and Socket.
type ListenConfig struct {
	// Address is host:port; anything but loopback needs TLS.
	Address string `toml:"address"`
	// Socket is the path of a unix socket, mode 0660: for a reverse proxy.
	Socket  string `toml:"socket"`
	TLSCert string `toml:"tls_cert"`
	TLSKey  string `toml:"tls_key"`
	// Origins are what browsers may have in their address bar beside Address, as
	// "https://yoi.example": what a proxy is reached by.
	Origins []string `toml:"origins"`
}

// RuntimeConfig is a Runtime.
type RuntimeConfig struct {
	Socket string `toml:"socket"`
}

// LimitsConfig bounds what one client costs. Zero takes the default.
type LimitsConfig struct {
	RequestsPerSecond float64 `toml:"requests_per_second"` // of one actor or address: 50
	Burst             int     `toml:"burst"`               // 200
	LoginsPerMinute   float64 `toml:"logins_per_minute"`   // of one address, and for one name: 10
	BodyBytes         int64   `toml:"body_bytes"`          // 256 KiB
	Streams           int     `toml:"streams"`             // live streams at once: 256
	DiffBytes         int64   `toml:"diff_bytes"`          // of a diff that is shown: 4 MiB
}

// WorkspaceConfig is a workspace: what its members may use.
type WorkspaceConfig struct {
	Title        string                      `toml:"title"`
	Runtime      string                      `toml:"runtime"`
	Repositories map[string]RepositoryConfig `toml:"repositories"`
	// AllowRemote admits sources that are not a path of the Runtime's host.
	AllowRemote bool `toml:"allow_remote"`
	// MaxExecutionWorkspaces counts those that are not removed; 0 is 100.
	MaxExecutionWorkspaces int `toml:"max_execution_workspaces"`
	// The first of each is the default. Without a list only the default is allowed.
	Strategies      []string `toml:"strategies"`
	DirtyStates     []string `toml:"dirty_state_policies"`
	CleanupPolicies []string `toml:"cleanup_policies"`
	Networks        []string `toml:"networks"`
	// NetworkRules are the destinations of which an allowlist may be made, as
	// policy.ParseNetworkRule reads them.
	NetworkRules []string `toml:"network_rules"`
	// Upper bounds of what a Worker may ask for, and what it gets unless it asks.
	MaxWallClock  string `toml:"max_wall_clock"`
	MaxMemory     string `toml:"max_memory"`
	MaxCPUPercent uint64 `toml:"max_cpu_percent"`
}

// RepositoryConfig is a repository that a workspace may use.
type RepositoryConfig struct {
	Title  string `toml:"title"`
	Source string `toml:"source"`
	// DefaultBranch is what a form offers; "" is the source's HEAD.
	DefaultBranch string `toml:"default_branch"`
	// Strategies narrows the workspace's.
	Strategies []string `toml:"strategies"`
	// Filter makes the Runtime's mirror of a remote source a partial clone.
	Filter string `toml:"filter"`
}

const maxConfigSize = 1 << 20

// LoadConfig reads a configuration file.
func LoadConfig(path string) (Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return Config{}, configError("the configuration file cannot be read").Because(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfigSize+1)) // one read of a pipe may be a part
	if err != nil || len(b) == 0 || len(b) > maxConfigSize {
		return Config{}, configError("the configuration file cannot be read, is empty, or is over 1 MiB").Because(err)
	}
	return ParseConfig(b)
}

// ParseConfig reads and checks a configuration.
func ParseConfig(b []byte) (Config, error) {
	var c Config
	if err := toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields().Decode(&c); err != nil {
		var strict *toml.StrictMissingError
		if errors.As(err, &strict) {
			return c, configError("the configuration has unknown fields:\n%s", strict.String())
		}
		return c, configError("the configuration is not valid TOML: %s", err)
	}
	c.defaults()
	return c, c.check()
}

func configError(format string, args ...any) *policy.Diagnostic {
	return policy.Errorf(policy.CodeConfigInvalid, "backend.config", format, args...)
}

func (c *Config) defaults() {
	if c.Listen.Address == "" && c.Listen.Socket == "" {
		c.Listen.Address = "127.0.0.1:8420"
	}
	def := func(list *[]string, first string) {
		if len(*list) == 0 {
			*list = []string{first}
		}
	}
	for id, w := range c.Workspaces {
		w.NetworkRules = normalRules(w.NetworkRules)
		def(&w.Strategies, string(policy.StrategyAuto))
		def(&w.DirtyStates, string(policy.CleanPointOnly))
		def(&w.CleanupPolicies, string(policy.KeepUntil))
		def(&w.Networks, string(policy.NetworkNone))
		if w.MaxExecutionWorkspaces == 0 {
			w.MaxExecutionWorkspaces = 100
		}
		if w.Title == "" {
			w.Title = id
		}
		c.Workspaces[id] = w
	}
	l := &c.Limits
	if l.RequestsPerSecond == 0 {
		l.RequestsPerSecond = 50
	}
	if l.Burst == 0 {
		l.Burst = 200
	}
	if l.LoginsPerMinute == 0 {
		l.LoginsPerMinute = 10
	}
	if l.BodyBytes == 0 {
		l.BodyBytes = 256 << 10
	}
	if l.Streams == 0 {
		l.Streams = 256
	}
	if l.DiffBytes == 0 {
		l.DiffBytes = 4 << 20
	}
	if c.Sessions.Lifetime == "" {
		c.Sessions.Lifetime = "12h"
	}
}

func (c *Config) check() error {
	if err := c.Listen.check(); err != nil {
		return err
	}
	if !filepath.IsAbs(c.Store) {
		return configError("store is not an absolute path")
	}
	if len(c.Workspaces) == 0 {
		return configError("no workspace is configured")
	}
	if d, err := time.ParseDuration(c.Sessions.Lifetime); err != nil || d < time.Minute {
		return configError("sessions.lifetime is no duration of a minute or more")
	}
	l := c.Limits
	if l.RequestsPerSecond < 0 || l.Burst < 0 || l.LoginsPerMinute < 0 || l.BodyBytes < 0 || l.Streams < 0 || l.DiffBytes < 0 {
		return configError("a limit is negative")
	}
	for id, r := range c.Runtimes {
		if !policy.ValidID(id) || !filepath.IsAbs(r.Socket) {
			return configError("the runtime %q has no valid id, or its socket is not an absolute path", policy.Printable(id))
		}
	}
	for id, w := range c.Workspaces {
		if err := w.check(c, id); err != nil {
			return err
		}
	}
	return nil
}

func (l ListenConfig) check() error {
	if (l.TLSCert == "") != (l.TLSKey == "") {
		return configError("listen.tls_cert and listen.tls_key go together")
	}
	if l.Socket != "" {
		if l.Address != "" || !filepath.IsAbs(l.Socket) {
			return configError("listen has an address beside a socket, or a socket that is not an absolute path")
		}
		return l.checkOrigins()
	}
	host, _, err := net.SplitHostPort(l.Address)
	if err != nil {
		return configError("listen.address is not host:port")
	}
	if !loopback(host) && l.TLSCert == "" {
		return configError("listen.address %q can be reached by others and has no TLS", l.Address).
			WithHint("Set listen.tls_cert and listen.tls_key, or listen on 127.0.0.1 or a socket behind a proxy.")
	}
	return l.checkOrigins()
}

func (l ListenConfig) checkOrigins() error {
	for _, o := range l.Origins {
		u, err := url.Parse(o)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
			return configError("the origin %q is not scheme://host[:port]", policy.Printable(o))
		}
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

func (w WorkspaceConfig) check(c *Config, id string) error {
	bad := func(format string, args ...any) error {
		return configError("workspace %q: %s", policy.Printable(id), fmt.Sprintf(format, args...))
	}
	if !policy.ValidID(id) {
		return bad("the id is not valid")
	}
	if _, ok := c.Runtimes[w.Runtime]; !ok {
		return bad("there is no runtime %q", policy.Printable(w.Runtime))
	}
	if len(w.Repositories) == 0 {
		return bad("it has no repositories")
	}
	for _, s := range w.Strategies {
		if _, err := policy.ParseStrategy(s); err != nil {
			return bad("%q is no strategy", s)
		}
		if s == string(policy.StrategyDirect) {
			return bad("direct_legacy_mount hands out the source itself: it is not for a browser")
		}
	}
	for _, s := range w.DirtyStates {
		if p, err := policy.ParseDirtyStatePolicy(s); err != nil || (p != policy.CleanPointOnly && p != policy.CurrentWorktreeSnapshot) {
			return bad("%q is no dirty-state policy that the Backend offers", s)
		}
	}
	for _, s := range w.CleanupPolicies {
		if _, err := policy.ParseCleanupPolicy(s); err != nil {
			return bad("%q is no cleanup policy", s)
		}
	}
	if err := w.checkNetworks(); err != nil {
		return bad("%s", policy.AsDiagnostic(err).Message)
	}
	if _, err := w.bounds(); err != nil {
		return bad("%s", policy.AsDiagnostic(err).Message)
	}
	for rid, r := range w.Repositories {
		if !policy.ValidID(rid) || r.Source == "" {
			return bad("the repository %q has no valid id or no source", policy.Printable(rid))
		}
		if r.remote() && !strings.Contains(r.Source, ":") {
			return bad("the source of %q is neither an absolute path nor a URL", rid)
		}
		for _, s := range r.Strategies {
			if !slices.Contains(w.Strategies, s) {
				return bad("the repository %q names the strategy %q, which the workspace does not allow", rid, s)
			}
		}
		if r.DefaultBranch != "" {
			if err := (policy.Selector{Kind: policy.SelectBranch, Value: r.DefaultBranch}).Validate(); err != nil {
				return bad("the repository %q has no valid default branch", rid)
			}
		}
		if err := policy.ObjectFilter(r.Filter).Validate(); err != nil {
			return bad("the repository %q has no valid filter", rid)
		}
	}
	return nil
}

func (w WorkspaceConfig) checkNetworks() error {
	for _, s := range w.Networks {
		switch policy.NetworkMode(s) {
		case policy.NetworkNone, policy.NetworkAllowlist, policy.NetworkHost:
		default:
			return configError("%q is no network mode that the Backend offers", s)
		}
	}
	if slices.Contains(w.Networks, string(policy.NetworkAllowlist)) != (len(w.NetworkRules) > 0) {
		return configError("network_rules and the network mode allowlist go together")
	}
	if len(w.NetworkRules) > policy.MaxNetworkRules {
		return configError("there are more than %d network rules", policy.MaxNetworkRules)
	}
	for _, s := range w.NetworkRules {
		if _, err := policy.ParseNetworkRule(s); err != nil {
			return err
		}
	}
	return nil
}

// normalRules writes each rule in its one spelling. What is no rule stays as it is, for
// a check to refuse.
func normalRules(rules []string) []string {
	out := make([]string, 0, len(rules))
	for _, s := range rules {
		if r, err := policy.ParseNetworkRule(s); err == nil {
			s = r.String()
		}
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// bounds are the greatest limits that a Worker may have; zero fields are unbounded.
func (w WorkspaceConfig) bounds() (policy.Limits, error) {
	var l policy.Limits
	var err error
	if w.MaxWallClock != "" {
		if l.WallClock, err = time.ParseDuration(w.MaxWallClock); err != nil {
			return l, configError("max_wall_clock is no duration")
		}
	}
	if w.MaxMemory != "" {
		if l.MemoryMax, err = parseSize(w.MaxMemory); err != nil {
			return l, configError("max_memory is no size")
		}
	}
	l.CPUPercent = w.MaxCPUPercent
	return l, l.Validate()
}

// remote says whether a source is anything but a path of the Runtime's host.
func (r RepositoryConfig) remote() bool { return !filepath.IsAbs(r.Source) }

// Check looks at what the configuration names on this host: the store's place, and the
// TLS key pair.
func (c Config) Check() error {
	_, err := c.Listen.certificate()
	return errors.Join(c.CheckStore(), err)
}

// CheckStore refuses a store that lies where others write: below a Runtime root,
// or in the working tree of a repository that Workers are given.
func (c Config) CheckStore() error {
	dir, err := filepath.EvalSymlinks(filepath.Dir(c.Store))
	if err != nil {
		return configError("the store's directory does not exist").Because(err)
	}
	for _, w := range c.Workspaces {
		for id, r := range w.Repositories {
			if src, err := filepath.EvalSymlinks(r.Source); err == nil && !r.remote() && within(dir, src) {
				return configError("the store lies inside the repository %q", id)
			}
		}
	}
	for d := dir; ; d = filepath.Dir(d) {
		_, err := os.Lstat(filepath.Join(d, "runtime.db"))
		if err == nil {
			return policy.Errorf(policy.CodeRuntimeRootOverlap, "backend.config", "the store lies below a Runtime root")
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return configError("the directories above the store cannot be looked at").Because(err)
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// parseSize reads a number of bytes with an optional K, M, G or T (powers of 1024).
func parseSize(s string) (uint64, error) {
	n, shift := s, 0
	if i := strings.IndexAny(s, "KMGTkmgt"); i >= 0 && i == len(s)-1 {
		n, shift = s[:i], 10*(1+strings.Index("KMGT", strings.ToUpper(s[i:])))
	}
	var v uint64
	for _, c := range []byte(n) {
		if c < '0' || c > '9' || v > 1<<40 {
			return 0, fmt.Errorf("%q is no size", policy.Printable(s))
		}
		v = v*10 + uint64(c-'0')
	}
	if n == "" || v > 1<<62>>shift {
		return 0, fmt.Errorf("%q is no size", policy.Printable(s))
	}
	return v << shift, nil
}
