package runtime

import (
	"bytes"
	"errors"
	"io/fs"
	"strconv"
	"time"

	"github.com/pelletier/go-toml/v2"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/internal/rootdir"
	"yoi.dev/yoi-runtime/policy"
)

// Config is config.toml of a Runtime root. Every field has a default; a field
// that is not known is an error, so that a misspelt limit is never ignored.
type Config struct {
	Defaults struct {
		Strategy string `toml:"strategy"`
		Cleanup  string `toml:"cleanup_policy"`
		Network  string `toml:"network"`
		Seccomp  string `toml:"seccomp"`
		// Root is system, minimal or image:NAME.
		Root string `toml:"root"`
		// Disk is a size such as "2G", Inodes a number; both are of one workspace.
		Disk      string `toml:"disk"`
		Inodes    int64  `toml:"inodes"`
		HardQuota bool   `toml:"hard_quota"`
	} `toml:"defaults"`
	Cache struct {
		// MaxBytes is what gc leaves of pristine trees that nobody uses.
		MaxBytes int64 `toml:"max_bytes"`
		// DependencyMaxBytes and BuildMaxBytes bound one entry of the shared caches;
		// SharedMaxBytes is what gc leaves of all of them.
		DependencyMaxBytes int64 `toml:"dependency_max_bytes"`
		BuildMaxBytes      int64 `toml:"build_max_bytes"`
		SharedMaxBytes     int64 `toml:"shared_max_bytes"`
		// PatchesUnusedFor is a duration such as "720h", or "never": how long gc leaves
		// stored patches that no workspace is made with.
		PatchesUnusedFor string `toml:"patches_unused_for"`
		// AllowPublish lets API callers trust Workers to publish caches.
		AllowPublish bool `toml:"allow_publish"`
		// Protocols is a subset of file, https and ssh.
		Protocols []string `toml:"protocols"`
	} `toml:"cache"`
	Sandbox struct {
		// AllowHostNetwork lets API callers ask for the network mode host.
		AllowHostNetwork bool `toml:"allow_host_network"`
	} `toml:"sandbox"`
	// Secrets are those that policies may name, by handle.
	Secrets map[policy.SecretHandle]SecretConfig `toml:"secrets"`
	Network struct {
		// Resolvers are ADDRESS:PORT of the name servers that allowlists are resolved by,
		// in place of the host's.
		Resolvers []string `toml:"resolvers"`
		// Roots is a PEM file of the certificate authorities that hosts of http-header
		// secrets are believed by; "" is the system's.
		Roots string `toml:"roots"`
		// AllowSpecial lets API callers ask for rules that reach beyond public addresses.
		AllowSpecial bool `toml:"allow_special"`
	} `toml:"network"`
	Journal  JournalConfig  `toml:"journal"`
	External ExternalConfig `toml:"external"`
	Images   struct {
		// Driver is overlay or vfs; MaxBytes and MaxEntries bound one image.
		Driver     string `toml:"driver"`
		MaxBytes   int64  `toml:"max_bytes"`
		MaxEntries int64  `toml:"max_entries"`
	} `toml:"images"`
	// Snapshots bound what archives of snapshot stores may unpack to.
	Snapshots struct {
		policy.SnapshotLimits
		StallTimeout string `toml:"stall_timeout"`
	} `toml:"snapshots"`
	IDPool struct {
		Base  uint32 `toml:"base"`
		Count uint32 `toml:"count"`
	} `toml:"id_pool"`
}

const (
	defaultCacheBytes      = 20 << 30
	defaultDependencyBytes = 4 << 30
	defaultBuildBytes      = 4 << 30
	defaultSharedBytes     = 20 << 30
	maxConfigSize          = 1 << 20
)

// LoadConfig reads config.toml; a Runtime root without one has the defaults.
func LoadConfig(root *rootdir.Root) (Config, error) {
	b, err := root.ReadFile(rootdir.Config, maxConfigSize)
	if errors.Is(err, fs.ErrNotExist) {
		return ParseConfig(nil)
	}
	if err != nil {
		return Config{}, policy.Errorf(policy.CodeConfigInvalid, "runtime.config", "config.toml cannot be read").Because(err)
	}
	return ParseConfig(b)
}

// ParseConfig decodes and checks a configuration.
func ParseConfig(b []byte) (Config, error) {
	const op = "runtime.config"
	var c Config
	d := toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields()
	var err error
	if err = d.Decode(&c); err != nil {
		return c, tomlDiagnostic(err)
	}
	if _, err := policy.ParseStrategy(c.Defaults.Strategy); err != nil {
		return c, policy.Errorf(policy.CodeConfigInvalid, op, "defaults.strategy: %s", policy.AsDiagnostic(err).Message)
	}
	if c.Defaults.Cleanup != "" {
		if _, err := policy.ParseCleanupPolicy(c.Defaults.Cleanup); err != nil {
			return c, policy.Errorf(policy.CodeConfigInvalid, op, "defaults.cleanup_policy: %s", policy.AsDiagnostic(err).Message)
		}
	}
	sandbox := policy.SandboxPolicy{Network: policy.NetworkPolicy{Mode: policy.NetworkMode(c.Defaults.Network)}, Seccomp: policy.SeccompProfile(c.Defaults.Seccomp), Root: policy.RootProfile(c.Defaults.Root)}
	if err := sandbox.Validate(); err != nil {
		return c, policy.Errorf(policy.CodeConfigInvalid, op, "defaults: %s", policy.AsDiagnostic(err).Message)
	}
	if _, err := policy.ParseImageDriver(c.Images.Driver); err != nil {
		return c, policy.Errorf(policy.CodeConfigInvalid, op, "images.driver: %s", policy.AsDiagnostic(err).Message)
	}
	if err := c.imageLimits().Validate(); err != nil {
		return c, policy.Errorf(policy.CodeConfigInvalid, op, "images: %s", policy.AsDiagnostic(err).Message)
	}
	if c.Cache.MaxBytes < 0 {
		return c, policy.Errorf(policy.CodeConfigInvalid, op, "cache.max_bytes is negative")
	}
	if c.Cache.MaxBytes == 0 {
		c.Cache.MaxBytes = defaultCacheBytes
	}
	if err := c.checkShared(); err != nil {
		return c, err
	}
	if _, err := c.patchesUnusedFor(); err != nil {
		return c, err
	}
	for _, p := range c.Cache.Protocols {
		switch p {
		case "file", "https", "ssh":
		default:
			return c, policy.Errorf(policy.CodeConfigInvalid, op, "cache.protocols: %q is not file, https or ssh", policy.Printable(p))
		}
	}
	if d := c.Snapshots.StallTimeout; d != "" {
		if c.Snapshots.SnapshotLimits.StallTimeout, err = time.ParseDuration(d); err != nil {
			return c, policy.Errorf(policy.CodeConfigInvalid, op, "snapshots.stall_timeout: %q is not a duration", policy.Printable(d))
		}
	}
	if err := c.Snapshots.SnapshotLimits.Validate(); err != nil {
		return c, policy.Errorf(policy.CodeConfigInvalid, op, "snapshots: %s", policy.AsDiagnostic(err).Message)
	}
	if err := policy.ValidateResolvers(c.Network.Resolvers); err != nil {
		return c, policy.Errorf(policy.CodeConfigInvalid, op, "network.resolvers: %s", policy.AsDiagnostic(err).Message)
	}
	if err := errors.Join(c.External.validate(), c.Journal.validate()); err != nil {
		return c, err
	}
	if err := c.checkSecretConfig(); err != nil {
		return c, err
	}
	return c, c.pool().Validate()
}

// quota is the default of every workspace. Its settings have been checked.
func (c Config) quota() policy.Quota {
	q := policy.Quota{Inodes: c.Defaults.Inodes, Hard: c.Defaults.HardQuota}
	if n, err := policy.ParseSize(c.Defaults.Disk); err == nil {
		q.Bytes = int64(n)
	}
	return q
}

// checkShared checks what concerns the shared caches and fills in its defaults.
func (c *Config) checkShared() error {
	const op = "runtime.config"
	if c.Defaults.Disk != "" {
		if n, err := policy.ParseSize(c.Defaults.Disk); err != nil || n > 1<<60 {
			return policy.Errorf(policy.CodeConfigInvalid, op, "defaults.disk: %q is not a size such as 500M or 2G", policy.Printable(c.Defaults.Disk))
		}
	}
	if err := c.quota().Validate(); err != nil {
		return policy.Errorf(policy.CodeConfigInvalid, op, "defaults: %s", policy.AsDiagnostic(err).Message)
	}
	for _, f := range []struct {
		name  string
		value *int64
		usual int64
	}{
		{"dependency_max_bytes", &c.Cache.DependencyMaxBytes, defaultDependencyBytes},
		{"build_max_bytes", &c.Cache.BuildMaxBytes, defaultBuildBytes},
		{"shared_max_bytes", &c.Cache.SharedMaxBytes, defaultSharedBytes},
	} {
		if *f.value < 0 {
			return policy.Errorf(policy.CodeConfigInvalid, op, "cache.%s is negative", f.name)
		}
		if *f.value == 0 {
			*f.value = f.usual
		}
	}
	return nil
}

func (c Config) imageLimits() policy.ImageLimits {
	return policy.ImageLimits{Bytes: c.Images.MaxBytes, Entries: c.Images.MaxEntries}
}
func (c Config) snapshotLimits() policy.SnapshotLimits { return c.Snapshots.SnapshotLimits.Normalize() }

func (c Config) pool() helper.IDPool {
	p := helper.DefaultIDPool
	if c.IDPool.Base != 0 {
		p.Base = c.IDPool.Base
	}
	if c.IDPool.Count != 0 {
		p.Count = c.IDPool.Count
	}
	return p
}

func tomlDiagnostic(err error) error {
	const op = "runtime.config"
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) && len(strict.Errors) > 0 {
		row, _ := strict.Errors[0].Position()
		return policy.Errorf(policy.CodeConfigInvalid, op, "line %d: no such setting", row).With("line", strconv.Itoa(row)).Because(err)
	}
	var de *toml.DecodeError
	if errors.As(err, &de) {
		row, col := de.Position()
		return policy.Errorf(policy.CodeConfigInvalid, op, "line %d, column %d: %s", row, col, de.Error()).With("line", strconv.Itoa(row)).Because(err)
	}
	return policy.Errorf(policy.CodeConfigInvalid, op, "the configuration cannot be read").Because(err)
}
