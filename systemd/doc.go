// Package systemd puts Workers under the host's service manager: each into a
// transient scope of its own, below a slice for its workspace.
//
// It exists so that operators see, limit and stop Workers as they do everything else
// (systemctl status, systemd-cgls, systemctl stop yoi.slice), and so that a Worker is
// no part of the service that started it. It speaks D-Bus to the manager's private
// socket, which needs no message bus: a bus that is restarted, or that a machine does
// not have, stops no launch.
//
// It does not keep a Worker alive or wait for it: that is the helper's, by pidfd. The
// unit files beside it are installed by `make install`.
package systemd
