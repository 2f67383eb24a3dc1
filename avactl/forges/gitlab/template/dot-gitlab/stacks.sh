# Print a pipeline for the stacks on standard input: one job per stack, clusters before teams.
cat <<'END'
include: [{local: .gitlab/stack.yml}]
nothing:
  stage: platform
  script: [echo "the stacks, if any, are applied by the other jobs"]
END
while read -r stack; do
  case $stack in *.*) stage=teams ;; *) stage=platform ;; esac
  printf '"%s":\n  extends: .stack\n  stage: %s\n  variables: {STACK: "%s"}\n  resource_group: avactl/%s\n' \
    "$stack" "$stage" "$stack" "$stack"
done
