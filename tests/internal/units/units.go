// Package units names what no machine of the tests' own needs, whether it has a kernel of
// its own or not. It promises nothing about what is left.
package units

// Masked are units that make sense on hardware only, or would use a network.
var Masked = []string{
	"console-getty.service", "getty.target", "systemd-remount-fs.service", "apt-daily.timer", "apt-daily-upgrade.timer",
	"dpkg-db-backup.timer", "fstrim.timer", "e2scrub_all.timer", "e2scrub_reap.service", "man-db.timer",
	"logrotate.timer", "exim4-base.timer", "systemd-tmpfiles-clean.timer", "sys-fs-fuse-connections.mount",
	"sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-kernel-config.mount", "dev-hugepages.mount",
	"dev-mqueue.mount", "proc-sys-fs-binfmt_misc.automount", "systemd-modules-load.service",
	"kmod-static-nodes.service", "systemd-random-seed.service", "systemd-pstore.service", "systemd-timesyncd.service",
	"systemd-binfmt.service",
}
