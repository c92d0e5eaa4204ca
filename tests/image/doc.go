// Package image tests base images from the archive to the Worker: what a user
// sees, what a hostile image can do, and what a crash leaves.
package image
