# Writes the pipeline of the stacks whose names it reads: one job each, clusters before teams.
cat <<'END'
include: [{local: .gitlab/stack.yml}]
nothing:
  stage: platform
  script: [echo "all that was asked for stands in the other jobs"]
END
while read -r stack; do
  case $stack in *.*) stage=teams ;; *) stage=platform ;; esac
  printf '"%s":\n  extends: .stack\n  stage: %s\n  variables: {STACK: "%s"}\n  resource_group: avactl/%s\n' \
    "$stack" "$stage" "$stack" "$stack"
done
