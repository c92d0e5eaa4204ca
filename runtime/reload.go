package runtime

import (
	"context"

	"yoi.dev/yoi-runtime/policy"
)

// settings is the configuration in force, and why a later one is not.
type settings struct {
	config  Config
	refused *policy.Diagnostic
}

// config is the configuration in force. A caller that needs two settings of one
// configuration calls once.
func (r *Runtime) config() *Config { return &r.settings.Load().config }

// Reload reads config.toml again. One with a mistake changes nothing: the Runtime goes
// on with what it has, and says so until a right one is read. What stands has its own
// record, so Workers and workspaces keep what they were made with; the pool of ids is
// the helper's from its start.
func (r *Runtime) Reload(_ context.Context) error {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	cfg, err := LoadConfig(r.root)
	if err != nil {
		d := policy.AsDiagnostic(err)
		r.settings.Store(&settings{config: *r.config(), refused: d})
		r.log.Error("the configuration is as it was: the new one is refused", "error", d)
		r.events.wake()
		return err
	}
	r.settings.Store(&settings{config: cfg})
	r.cache.Reconfigure(cfg.Cache.Protocols, cfg.snapshotLimits())
	r.event(policy.EventRuntimeReloaded, string(r.id), nil)
	return nil
}

// configCheck tells of a configuration that was refused.
func (r *Runtime) configCheck() DoctorCheck {
	d := r.settings.Load().refused
	if d == nil {
		return DoctorCheck{Name: "configuration", State: "ok"}
	}
	return DoctorCheck{Name: "configuration", State: "degraded", Message: "config.toml is not in force: " + d.Message, Fix: "mend it, then systemctl reload yoi-runtimed"}
}
