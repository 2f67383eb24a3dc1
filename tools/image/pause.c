// The first process of every pod: reaps orphans until it is told to end.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) { _exit(0); }
static void reap(int number) { while (waitpid(-1, 0, WNOHANG) > 0); }

int main(void) {
  signal(SIGINT, end);
  signal(SIGTERM, end);
  signal(SIGCHLD, reap);
  for (;;) pause();
}
