"""Which methods are compared with which implementations, and why two part where they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SERVER = ("server",)
CLIENTS = ("clients",)
BOTH = ("server", "clients")
CENTRES = ("centres",)


@dataclass(frozen=True)
class Explanation:
    """A stated change with which two sides agree that part without it.

    Attributes:
        text: what is changed, on which side.
        change: a departure of our side, by its name in `CHANGES`.
        params: parameters of our method that differ from the pair's.
        settings: settings of their side that differ from the pair's.
        participation: share of the clients in a round, for both sides; None = as in the pair.
    """

    text: str
    change: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    participation: float | None = None


@dataclass(frozen=True)
class Pair:
    """A method of flbench and another implementation of it.

    Attributes:
        framework: a name of `FRAMEWORKS`.
        method, params: ours.
        algorithm, settings: theirs, as the driver of the framework takes them.
        models: which models are compared: "server", "clients", "centres".
        variant: tells pairs of one method and framework from each other.
        local: settings of local training that differ from the usual ones.
        participation: share of the clients in a round.
        seconds: what a step takes each client, for a server that does not wait for cohorts.
        reason: why the two part, read from their source; "" = they should be equal.
        mend: how theirs could be mended, where the reason is a defect; "" = it is a choice.
        explanation: with what change they agree.
    """

    framework: str
    method: str
    algorithm: str
    params: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = SERVER
    variant: str = ""
    local: Mapping[str, Any] = field(default_factory=dict)
    participation: float = 0.6
    seconds: tuple[float, ...] = ()
    reason: str = ""
    mend: str = ""
    explanation: Explanation | None = None

    @property
    def name(self) -> str:
        """Name of its result file."""
        return "-".join(filter(None, [self.framework, self.method, self.variant]))


WEIGHTED = {"server": {"weighted": True}}
FLUKE_FEDOPT = (
    "`FedOptServer.aggregate` (`fluke/algorithms/fedopt.py`) first calls `Server.aggregate`, which"
    " already scales the mean update by the server's learning rate, and then scales the adaptive"
    " step by it again; and v starts at 0, the paper asks for at least tau^2."
)
FLUKE_FEDOPT_EXPLANATION = Explanation(
    "tau / server_lr in place of tau on our side, v starts at tau^2 on theirs",
    params={"tau": 0.1},
    settings={"moments": 0.01**2},
)


def fluke_fedopt(mode: str, params: Mapping[str, float]) -> Pair:
    """One of the three modes of fluke's FedOpt."""
    ours = {"server_lr": 0.1, "tau": 0.01, "beta1": 0.8, **params}
    theirs = {"mode": mode, "lr": 0.1, "tau": 0.01, "beta1": 0.8, "beta2": 0.95}
    return Pair(
        "fluke-fl",
        f"fed{mode}",
        "fedopt:FedOpt",
        ours,
        {"server": theirs},
        reason=FLUKE_FEDOPT,
        mend="Take the mean without the learning rate, then the adaptive step; start v at tau^2.",
        explanation=FLUKE_FEDOPT_EXPLANATION,
    )


FEDLAB_UNIFORM = (
    "`SyncServerHandler.global_update` (`fedlab/contrib/algorithm/basic_server.py`) calls"
    " `Aggregators.fedavg_aggregate` without weights: clients count alike, whatever number of"
    " samples they have."
)
UNIFORM = Explanation("uniform weights on our side", change="uniform-weights")
FULL = Explanation("all clients take part in every round", participation=1.0)

PAIRS: tuple[Pair, ...] = (
    Pair("fluke-fl", "fedavg", "fedavg:FedAVG", settings=WEIGHTED),
    Pair(
        "fluke-fl",
        "fedavg",
        "fedavg:FedAVG",
        variant="default-weights",
        reason="The default of `Server.__init__` (`fluke/server.py`) is `weighted=False`: clients"
        " count alike, whatever number of samples they have.",
        explanation=UNIFORM,
    ),
    Pair(
        "fluke-fl",
        "fedavg",
        "fedavg:FedAVG",
        settings=WEIGHTED,
        variant="momentum",
        local={"momentum": 0.5},
        reason="`Client.fit` (`fluke/client.py`) makes the optimiser once: a client keeps its"
        " momentum buffer from the last round in which it took part, although its model is"
        " replaced. Here the optimiser is new in each round.",
        explanation=Explanation(
            "optimisers of clients are dropped after each round on their side",
            settings={**WEIGHTED, "forget": True},
        ),
    ),
    Pair(
        "fluke-fl",
        "fedprox",
        "fedprox:FedProx",
        {"mu": 0.3},
        {**WEIGHTED, "client": {"mu": 0.3}},
    ),
    Pair(
        "fluke-fl",
        "fedavgm",
        "fedavgm:FedAVGM",
        {"beta": 0.7},
        {"server": {"weighted": True, "momentum": 0.7}},
        reason="`FedAVGMServer.aggregate` (`fluke/algorithms/fedavgm.py`) makes the momentum vector"
        " in the first round and leaves it at zero: the models that clients trained in round 1"
        " are dropped.",
        mend="Start the momentum vector with the first pseudo-gradient, as in later rounds.",
        explanation=Explanation(
            "the update of round 1 is dropped on our side", change="first-update-is-lost"
        ),
    ),
    fluke_fedopt("adam", {"beta2": 0.95}),
    fluke_fedopt("yogi", {"beta2": 0.95}),
    fluke_fedopt("adagrad", {}),
    Pair(
        "fluke-fl",
        "fednova",
        "fednova:FedNova",
        settings=WEIGHTED,
        reason="`FedNovaServer.aggregate` (`fluke/algorithms/fednova.py`) sums the clients' models"
        " with the weights p_i tau / a_i, which do not sum to 1 if clients make different numbers"
        " of steps. The paper sums updates, so (1 - sum p_i tau / a_i) times the server's model"
        " is missing.",
        mend="Sum the clients' updates with these weights, and add them to the server's model.",
        explanation=Explanation(
            "the server's model is left out of the sum on our side",
            change="server-model-is-left-out",
        ),
    ),
    Pair("fluke-fl", "scaffold", "scaffold:SCAFFOLD", settings={"server": {"weighted": False}}),
    Pair(
        "fluke-fl",
        "moon",
        "moon:MOON",
        {"mu": 0.7, "tau": 0.5},
        {**WEIGHTED, "client": {"mu": 0.7, "tau": 0.5}},
        reason="`MOONClient.receive_model` (`fluke/algorithms/moon.py`) takes the model that a"
        " client receives first as its previous model. Here it is the initial one, which is"
        " another model for a client that joins after round 1.",
        explanation=FULL,
    ),
    Pair(
        "fluke-fl",
        "fedlc",
        "fedlc:FedLC",
        {"tau": 0.5},
        {**WEIGHTED, "client": {"tau": 0.5}},
    ),
    Pair(
        "fluke-fl",
        "fedrod",
        "fedrod:FedROD",
        {"psi": "copy"},
        WEIGHTED,
    ),
    Pair(
        "fluke-fl",
        "ditto",
        "ditto:Ditto",
        {"lam": 0.4},
        {**WEIGHTED, "client": {"lam": 0.4, "tau": 2}, "personal": "own"},
        BOTH,
    ),
    Pair(
        "fluke-fl",
        "fedper",
        "fedper:FedPer",
        settings={**WEIGHTED, "personal": "head", "server_model": "body"},
        models=CLIENTS,
    ),
    Pair(
        "fluke-fl",
        "fedrep",
        "fedrep:FedRep",
        {"body_epochs": 1},
        {
            **WEIGHTED,
            "client": {"local_epochs": 1, "tau": 1},
            "personal": "head",
            "server_model": "body",
        },
        CLIENTS,
    ),
    Pair(
        "fluke-fl",
        "lg-fedavg",
        "lg_fedavg:LGFedAVG",
        {"k": 1},
        {**WEIGHTED, "personal": "body", "server_model": "head"},
        CLIENTS,
    ),
    Pair(
        "fluke-fl",
        "fedbabu",
        "fedbabu:FedBABU",
        {"adapt_epochs": 0},
        {
            **WEIGHTED,
            "client": {"mode": "full", "fine_tuning_epochs": 0},
            "personal": "head",
            "server_model": "body",
        },
        CLIENTS,
    ),
    Pair(
        "fedlab",
        "fedavg",
        "fedavg:FedAvgServerHandler:FedAvgSerialClientTrainer",
        reason=FEDLAB_UNIFORM,
        explanation=UNIFORM,
    ),
    Pair(
        "fedlab",
        "fedprox",
        "fedprox:FedProxServerHandler:FedProxSerialClientTrainer",
        {"mu": 0.3},
        {"trainer": {"mu": 0.3}},
        reason=FEDLAB_UNIFORM,
        explanation=UNIFORM,
    ),
    Pair(
        "fedlab",
        "scaffold",
        "scaffold:ScaffoldServerHandler:ScaffoldSerialClientTrainer",
        settings={"handler": {"lr": 1.0}},
    ),
    Pair(
        "fedlab",
        "fednova",
        "fednova:FedNovaServerHandler:FedNovaSerialClientTrainer",
        settings={"handler": {"option": "uniform"}},
        reason="`FedNovaServerHandler.global_update` (`fedlab/contrib/algorithm/fednova.py`) has"
        " p_k = 1 / K: clients count alike, whatever number of samples they have.",
        explanation=Explanation("p_k = 1 / K on our side", change="uniform-nova"),
    ),
    Pair(
        "fedlab",
        "fednova",
        "fednova:FedNovaServerHandler:FedNovaSerialClientTrainer",
        settings={"handler": {}},
        variant="default-option",
        reason="The default `option` of `FedNovaServerHandler.setup_optim`"
        " (`fedlab/contrib/algorithm/fednova.py`), `weighted_scale`, multiplies the update by"
        " N / K, which is meant for shares of all N clients; but `global_update` makes"
        " p_k = 1 / K, which already sum to 1 over the K clients of the round. Steps are N / K"
        " times too long where not all clients take part.",
        mend="Leave out the factor N / K where p_k sum to 1 over the clients of the round.",
        explanation=Explanation(
            "p_k = 1 / K, and the update times N / K, on our side", change="uniform-nova-scaled"
        ),
    ),
    Pair(
        "fedlab",
        "feddyn",
        "feddyn:FedDynServerHandler:FedDynSerialClientTrainer",
        {"alpha": 0.1},
        {"handler": {"alpha": 0.1}, "trainer": {"alpha": 0.1}},
        reason="`FedDynSerialClientTrainer.train` (`fedlab/contrib/algorithm/feddyn.py`) computes"
        " both terms of the regulariser from `self.model_parameters`, a copy without gradients:"
        " they never change a step, and clients train as in FedAvg. And"
        " `FedDynServerHandler.global_update` takes the old model off the sum of the clients'"
        " models once, where the paper takes it off each of them. Clients also count alike.",
        mend="Compute the terms of the regulariser from the model's parameters with their"
        " gradients, and take the server's model off the model of each client.",
        explanation=Explanation(
            "no local regulariser, their server's rule, uniform weights, on our side",
            change="uncorrected-feddyn",
            params={"alpha": 0.0},
        ),
    ),
)


FLWR_FEDOPT = {"server_lr": 0.1, "tau": 0.01, "beta1": 0.8}
FLWR_MOMENTS = (
    "v starts at 0 in `%s.aggregate_fit` (`flwr/server/strategy/%s.py`); the paper asks for"
    " at least tau^2."
)


def flwr(
    method: str,
    strategy: str,
    params: Mapping[str, Any] | None = None,
    theirs: Mapping[str, Any] | None = None,
    **changes: Any,  # noqa: ANN401 - fields of a pair
) -> Pair:
    """A strategy of Flower."""
    settings = {"strategy": dict(theirs or {}), **changes.pop("settings", {})}
    return Pair("flwr", method, strategy, params or {}, settings, **changes)


def flwr_fedopt(name: str, beta2: float | None, reason: str, change: Explanation) -> Pair:
    """An adaptive strategy of Flower."""
    second = {} if beta2 is None else {"beta2": beta2}
    ours = {**FLWR_FEDOPT, **second}
    if name == "Adagrad":
        ours["beta1"] = 0.0
    theirs = {"eta": 0.1, "tau": 0.01}
    if beta2 is not None:
        theirs |= {"beta_1": 0.8, "beta_2": beta2}
    return flwr(f"fed{name.lower()}", f"Fed{name}", ours, theirs, reason=reason, explanation=change)


PAIRS += (
    flwr("fedavg", "FedAvg"),
    flwr("fedavg", "FedAvg", variant="momentum", local={"momentum": 0.5}),
    flwr("fedavgm", "FedAvgM", {"beta": 0.7}, {"server_momentum": 0.7}),
    flwr("median", "FedMedian", participation=1.0),
    flwr("trimmed-mean", "FedTrimmedAvg", {"beta": 0.25}, {"beta": 0.25}, participation=1.0),
    flwr("krum", "Krum", {"byzantine": 1}, {"num_malicious_clients": 1}, participation=1.0),
    flwr(
        "multi-krum",
        "Krum",
        {"byzantine": 1, "chosen": 3},
        {"num_malicious_clients": 1, "num_clients_to_keep": 3},
        participation=1.0,
        reason="`aggregate_krum` (`flwr/server/strategy/aggregate.py`) weights the chosen"
        " uploads by their numbers of samples. The paper has their plain mean: numbers that"
        " attackers report must not count.",
        explanation=Explanation("weights by samples on our side", change="weighted-krum"),
    ),
    flwr(
        "q-fedavg",
        "QFedAvg",
        {"q": 0.0},
        {"q_param": 0.0, "qffl_learning_rate": 0.1},
        settings={"loss": True},
        variant="q-0",
    ),
    flwr(
        "q-fedavg",
        "QFedAvg",
        {"q": 0.5},
        {"q_param": 0.5, "qffl_learning_rate": 0.1},
        settings={"loss": True},
        participation=1.0,
        mend="Take each client's own loss from its answer (`FitRes.metrics`).",
        reason="`QFedAvg.aggregate_fit` (`flwr/server/strategy/qfedavg.py`) takes one loss, that of"
        " the server's `evaluate_fn`, for all clients, so a client with a larger loss counts no"
        " more than others. The paper has the loss of each client.",
        explanation=Explanation("one loss for all clients on our side", change="one-loss"),
    ),
    flwr_fedopt(
        "Adagrad",
        None,
        FLWR_MOMENTS % ("FedAdagrad", "fedadagrad"),
        Explanation("v starts at tau^2 on their side", settings={"moments": 0.01**2}),
    ),
    flwr_fedopt(
        "Yogi",
        0.95,
        FLWR_MOMENTS % ("FedYogi", "fedyogi"),
        Explanation("v starts at tau^2 on their side", settings={"moments": 0.01**2}),
    ),
    flwr_fedopt(
        "Adam",
        0.95,
        FLWR_MOMENTS % ("FedAdam", "fedadam"),
        Explanation(
            "their bias correction on our side, v starts at tau^2 on theirs",
            change="late-bias-correction",
            settings={"moments": 0.01**2},
        ),
    ),
)

CFLA_CENTRES = (
    " (`cfla/framework/server/server_%s.py`) starts all K centres as copies of one model, so that"
    " in round 1 %s gives the first of them to all clients; if all take part in every round, as in"
    " the test below, the others never get a member. A client that was not selected yet is"
    " evaluated with a centre that is drawn at random."
)
CFLA_EQUAL = Explanation(
    "K = 1 and uniform weights on our side, all clients take part in every round",
    params={"k": 1, "weighting": "uniform"},
    participation=1.0,
)
PAIRS += (
    Pair(
        "cfla",
        "ifca",
        "server_ifca:ServerIFCA:client_ifca:ClientIFCA",
        {"k": 2},
        {"clusters": 2},
        CLIENTS,
        reason="`ServerIFCA.set_clients`"
        + CFLA_CENTRES % ("ifca", "the smallest loss, the first of equal ones,"),
        mend="Start the K centres from different initial weights, as the paper does.",
        explanation=CFLA_EQUAL,
    ),
    Pair(
        "cfla",
        "fesem",
        "server_fesem:ServerFeSEM:client_fesem:ClientFeSEM",
        {"k": 2},
        {"clusters": 2},
        CLIENTS,
        reason="`ServerFeSEM.set_clients`"
        + CFLA_CENTRES % ("fesem", "the smallest distance, the first of equal ones,"),
        mend="Start the K centres from different initial weights, or from a k-means of the first"
        " updates.",
        explanation=CFLA_EQUAL,
    ),
    Pair(
        "cfla",
        "fedper",
        "server_fedper:ServerFedPer:client_fedper:ClientFedPer",
        models=CLIENTS,
        reason="`average_state_dict` (`cfla/framework/common/utils.py`) is the plain mean: clients"
        " count alike, whatever number of samples they have.",
        explanation=Explanation("uniform weights on our side", change="uniform-body"),
    ),
)


PAIRS += (
    Pair(
        "cfla",
        "ifca",
        "server_ifca:ServerIFCA:client_ifca:ClientIFCA",
        {"k": 6, "weighting": "uniform"},
        {"clusters": 6, "start": True},
        CENTRES,
        variant="different-centres",
    ),
    Pair(
        "fluke-fl",
        "apfl",
        "apfl:APFL",
        {"alpha": 0.4, "adaptive": False},
        {"server": {"weighted": True, "tau": 1}, "client": {"lam": 0.4}, "personal": "own"},
        BOTH,
        reason="`APFLClient.fit` (`fluke/algorithms/apfl.py`) computes the loss of the mixture from"
        " the copy that `merge_models` makes of the two models, so no gradient reaches the"
        " client's own model: its optimiser never changes it. After training it becomes the"
        " mixture, so it is a moving average of trained global models.",
        mend="Compute the logits of the mixture as a function of both models' parameters (such as"
        " with `torch.func.functional_call`), and mix for predictions only.",
        explanation=Explanation(
            "the own model is not trained, and becomes the mixture, on our side",
            change="own-is-the-mixture",
        ),
    ),
    Pair(
        "fluke-fl",
        "pfedme",
        "pfedme:PFedMe",
        {"k": 1, "lam": 3.0, "beta": 0.5},
        {"server": {"beta": 0.5}, "client": {"k": 1}, "optimizer": {"lamda": 3.0, "mu": 0.0}},
        reason="`PFedMeClient.fit` (`fluke/algorithms/pfedme.py`) gives its optimiser the model"
        " itself as the point from which the model must not move, so lambda has no effect; the"
        " model that is sent is theta, not w: clients train as in FedAvg.",
        mend="Give the optimiser the parameters of `internal_model`, which is w, start w from the"
        " server's model in each round, and send w.",
        explanation=Explanation(
            "lambda = 1 / eta_p on our side, with which a step of w is one of SGD",
            params={"lam": 10.0},
        ),
    ),
    Pair(
        "cfla",
        "flhc",
        "server_flhc:ServerFLHC:client_flhc:ClientFLHC",
        {"n": 1, "distance": 0.4},
        {
            "server": {
                "initial_rounds": 1,
                "cluster_rounds": 3,
                "distance_threshold": 0.4,
                "clustering_metric": "cosine",
            }
        },
        CLIENTS,
        participation=1.0,
    ),
    Pair(
        "fluke-fl",
        "feddyn",
        "feddyn:FedDyn",
        {"alpha": 0.1},
        {
            "server": {"weighted": True},
            "client": {"alpha": 0.1, "clipping": 0},
            "sent": "cld_mdl",
        },
        participation=1.0,
        reason="`FedDynClient.fit` (`fluke/algorithms/feddyn.py`) adds alpha times (server's model"
        " - client's model) to what a client remembers, and uses this memory as the sum of"
        " (client's model - server's model): the sign is wrong, and alpha is applied twice."
        " (alpha also is larger for clients with fewer samples, and the memories have a plain"
        " mean, as in the code of the paper's authors.)",
        mend="Add (client's model - server's model) to the memory.",
        explanation=Explanation(
            "the same sign and factors on our side", change="signed-feddyn", params={"alpha": 0.0}
        ),
    ),
)


BY_SAMPLES = ["aggregate.weighting:WeightByDatapoints", {}]
CLIP = ["privacy.privacy_mechanism:NormClippingOnly", {"order": 2, "clipping_bound": 0.5}]


def pfl(
    method: str,
    algorithm: str,
    params: Mapping[str, Any] | None = None,
    theirs: Mapping[str, Any] | None = None,
    **changes: Any,  # noqa: ANN401 - fields of a pair
) -> Pair:
    """An algorithm of pfl-research, whose users are weighted by samples unless `theirs` says so."""
    settings = {"postprocessors": [BY_SAMPLES], **(theirs or {})}
    return Pair("pfl", method, algorithm, params or {}, settings, **changes)


PFL_FEDAVG = "federated_averaging:FederatedAveraging"
PAIRS += (
    pfl("fedavg", PFL_FEDAVG),
    pfl(
        "fedavg",
        PFL_FEDAVG,
        theirs={"postprocessors": []},
        variant="default-weights",
        reason="`SimulatedBackend` (`pfl/aggregate/simulate.py`) gives every user the weight 1, if"
        " none of its postprocessors is `WeightByDatapoints`: clients count alike, whatever number"
        " of samples they have.",
        explanation=UNIFORM,
    ),
    pfl("fedavg", PFL_FEDAVG, variant="momentum", local={"momentum": 0.5}),
    pfl("fedavgm", PFL_FEDAVG, {"beta": 0.7}, {"central": {"momentum": 0.7}}),
    pfl(
        "fedadagrad",
        PFL_FEDAVG,
        {"server_lr": 0.1, "tau": 0.01, "beta1": 0.0},
        {
            "central": {
                "name": "Adagrad",
                "lr": 0.1,
                "eps": 0.01,
                "initial_accumulator_value": 0.01**2,
            }
        },
    ),
    pfl(
        "fedadam",
        PFL_FEDAVG,
        {"server_lr": 0.1, "tau": 0.01, "beta1": 0.8, "beta2": 0.95},
        {"central": {"name": "Adam", "lr": 0.1, "betas": [0.8, 0.95], "eps": 0.01}},
        reason="The server's optimiser is the user's: any of torch, which"
        " `PyTorchModel.apply_model_update` (`pfl/model/pytorch.py`) gives the negative mean update"
        " as gradient. `torch.optim.Adam` starts v at 0 and divides both moments by 1 - beta^t;"
        " FedAdam's paper starts v at tau^2 or more and divides neither.",
        explanation=Explanation(
            "v starts at 0, and both moments are divided by 1 - beta^t, on our side",
            change="torch-adam",
        ),
    ),
    pfl(
        "fedprox",
        "fedprox:FedProx:FedProxParams",
        {"mu": 0.3},
        {"params": {"mu": 0.3}},
    ),
    Pair(
        "pfl",
        "scaffold",
        "scaffold:SCAFFOLD:SCAFFOLDParams",
        settings={"params": {"population": 5, "use_gradient_as_control_variate": False}},
        reason="`SCAFFOLD.train_one_user` (`pfl/algorithm/scaffold.py`) adds `model_diff`, which is"
        " the client's model minus the server's, over K times the learning rate to a client's"
        " variate. The paper adds the server's model minus the client's, so the sign is wrong:"
        " variates are negative gradients, the correction in"
        " `pfl/internal/bridge/pytorch/scaffold.py` increases the drift of clients, and it grows"
        " from round to round (c_i becomes 2 (c_i - c) - g_i in place of g_i). With"
        " `use_gradient_as_control_variate` the sign is wrong in the same way, as read from the"
        " source.",
        mend="Take `model_diff` over K times the learning rate off the variate, and negate the"
        " model difference where `use_gradient_as_control_variate` is set.",
        explanation=Explanation(
            "the same sign in the change of the variates on our side", change="mirrored-variates"
        ),
    ),
    pfl(
        "norm-bound",
        PFL_FEDAVG,
        {"bound": 0.5},
        {"postprocessors": [CLIP, BY_SAMPLES]},
    ),
    pfl(
        "dp-fedavg",
        PFL_FEDAVG,
        {"clip": 0.5, "noise": 0.0, "weights": "samples"},
        {
            "postprocessors": [
                [
                    "privacy.gaussian_mechanism:GaussianMechanism",
                    {"clipping_bound": 0.5, "relative_noise_stddev": 0.0},
                ],
                BY_SAMPLES,
            ]
        },
        variant="without-noise",
    ),
)


SECONDS = (1.0, 2.9, 1.3, 1.7, 2.3)
CANDIDATES = [[0, 2, 3, 4], [0, 1, 3, 4], [0, 2, 3, 4], [0, 1, 3, 4]]
"""What our side draws with d = 4; see `test_the_candidates_are_those_that_we_draw`."""


def flgo(
    method: str,
    algorithm: str,
    params: Mapping[str, Any] | None = None,
    para: Mapping[str, Any] | None = None,
    **changes: Any,  # noqa: ANN401 - fields of a pair
) -> Pair:
    """An algorithm of FLGo with its parameters."""
    settings = {**({"para": dict(para)} if para else {}), **changes.pop("settings", {})}
    return Pair("flgo", method, algorithm, params or {}, settings, **changes)


PAIRS += (
    flgo("fedavg", "fedavg"),
    flgo("fedavg", "fedavg", variant="momentum", local={"momentum": 0.5}),
    flgo(
        "fedprox",
        "fedprox",
        {"mu": 0.3},
        {"mu": 0.3},
        reason="`Server.initialize` (`flgo/algorithm/fedprox.py`) replaces the options `sample` and"
        " `aggregate`: clients are drawn in proportion to their samples and have a plain mean, as"
        " in the paper. With given cohorts clients count alike, whatever number of samples they"
        " have.",
        explanation=UNIFORM,
    ),
    flgo(
        "fedprox",
        "fedprox",
        {"mu": 0.3},
        {"mu": 0.3},
        settings={"aggregate": "other"},
        variant="by-samples",
    ),
    flgo("scaffold", "scaffold"),
    flgo("fedavgm", "fedavgm", {"beta": 0.7}, {"beta": 0.7}),
    flgo("fednova", "fednova"),
    flgo("q-fedavg", "qfedavg", {"q": 0.5}, {"q": 0.5}),
    flgo(
        "afl",
        "afl",
        {"gamma": 0.1},
        {"learning_rate_lambda": 0.1},
        participation=1.0,
        reason="lambda starts at 1 / N in `Server.initialize` (`flgo/algorithm/afl.py`). Here it"
        " starts at the clients' shares of all samples.",
        explanation=Explanation(
            "lambda starts at the shares of samples on their side", settings={"lambdas": True}
        ),
    ),
    flgo(
        "feddyn",
        "feddyn",
        {"alpha": 0.1},
        {"alpha": 0.1},
        reason="`Server.aggregate` (`flgo/algorithm/feddyn.py`) has plain means, of the models and"
        " of what clients remember, as the paper has them. Here both are weighted by samples.",
        explanation=Explanation("plain means on our side", change="uniform-feddyn"),
    ),
    flgo(
        "moon",
        "moon",
        {"mu": 0.7, "tau": 0.5},
        {"mu": 0.7, "tau": 0.5},
        reason="`Client.train` (`flgo/algorithm/moon.py`) leaves the contrast out while a client"
        " has no previous model. Here this is the initial one, which matters for a client that"
        " joins after round 1.",
        explanation=FULL,
    ),
    flgo(
        "ditto",
        "ditto",
        {"lam": 0.4},
        {"mu": 0.4},
        settings={"aggregate": "other"},
        models=BOTH,
        reason="In `Client.train` (`flgo/algorithm/ditto.py`) a client's own model starts as a copy"
        " of the model that the client receives first; before that, `PFLLogger` tests the server's."
        " Here it starts as the initial one, which is another model for a client that joins after"
        " round 1.",
        explanation=FULL,
    ),
    flgo(
        "power-of-choice",
        "powerofchoice",
        {"d": 4, "weighting": "samples"},
        {"d": 4},
        settings={"candidates": CANDIDATES},
        reason="`Server.sample` (`flgo/algorithm/powerofchoice.py`) sorts the losses of the"
        " candidates, but takes their positions for positions in `available_clients`. With fewer"
        " candidates than clients, others train than those with the largest losses, even clients"
        " that are no candidates.",
        mend="Take the positions from the candidates: `np.array(candidate_set)[sort_id]`.",
        explanation=Explanation(
            "all clients are candidates, on both sides",
            params={"d": 5, "weighting": "samples"},
            settings={"para": {"d": 5}, "candidates": [[0, 1, 2, 3, 4]] * 4},
        ),
    ),
    flgo(
        "fedasync",
        "fedasync",
        {"mixing": 0.6, "decay": 0.5, "rho": 0.0},
        {"alpha": 0.6, "mu": 0.0, "poly_a": 0.5},
        seconds=SECONDS,
    ),
    flgo(
        "fedbuff",
        "fedbuff",
        {"size": 2, "rate": 1.0},
        {"buffer_ratio": 0.4, "eta": 1.0},
        seconds=SECONDS,
    ),
)


VANILLA = ":VanillaTrainer"
OPTIMISER = {"server_learning_rate": 0.1, "server_adapt_param": 0.01}
BUFFER = {
    "client_weights_mode": "equal",
    "num_clients": 2,
    "K": 2,
    "alpha": 1.0,
    "staleness_fn": "polynomial",
    "staleness_fn_kwargs": {"a": 0.5},
}
MOMENTS = {"server_momentum_param_1": 0.8, "server_momentum_param_2": 0.95}


def appfl(
    method: str,
    aggregator: str,
    params: Mapping[str, Any] | None = None,
    theirs: Mapping[str, Any] | None = None,
    **changes: Any,  # noqa: ANN401 - fields of a pair
) -> Pair:
    """An aggregator of APPFL with its configuration, and its usual trainer."""
    settings = {"aggregator": dict(theirs or {}), **changes.pop("settings", {})}
    return Pair("appfl", method, aggregator + VANILLA, params or {}, settings, **changes)


PAIRS += (
    appfl("fedavg", "FedAvgAggregator"),
    appfl("fedavg", "FedAvgAggregator", variant="momentum", local={"momentum": 0.5}),
    appfl(
        "fedavg",
        "FedAvgAggregator",
        theirs={"client_weights_mode": "equal"},
        variant="default-weights",
        reason="The default of `client_weights_mode` in `FedAvgAggregator.__init__`"
        ' (`appfl/algorithm/aggregator/fedavg_aggregator.py`) is "equal": clients count alike,'
        " whatever number of samples they have.",
        explanation=UNIFORM,
    ),
    Pair(
        "appfl",
        "fedprox",
        "FedAvgAggregator:FedProxTrainer",
        {"mu": 0.3},
        {"trainer": {"mu": 0.3}},
    ),
    appfl("fedavgm", "FedAvgMAggregator", {"beta": 0.7}, {"server_momentum_param_1": 0.7}),
    appfl(
        "fedadagrad",
        "FedAdagradAggregator",
        {"server_lr": 0.1, "tau": 0.01, "beta1": 0.8},
        {**OPTIMISER, "server_momentum_param_1": 0.8},
    ),
    appfl(
        "fedadam",
        "FedAdamAggregator",
        {"server_lr": 0.1, "tau": 0.01, "beta1": 0.8, "beta2": 0.95},
        {**OPTIMISER, **MOMENTS},
    ),
    appfl(
        "fedyogi",
        "FedYogiAggregator",
        {"server_lr": 0.1, "tau": 0.01, "beta1": 0.8, "beta2": 0.95},
        {**OPTIMISER, **MOMENTS},
    ),
    appfl(
        "fedasync",
        "FedAsyncAggregator",
        {"mixing": 0.6, "decay": 0.5, "rho": 0.0},
        {
            "client_weights_mode": "equal",
            "alpha": 0.6,
            "staleness_fn": "polynomial",
            "staleness_fn_kwargs": {"a": 0.5},
        },
        seconds=SECONDS,
    ),
    appfl(
        "fedbuff",
        "FedBuffAggregator",
        {"size": 2, "rate": 1.0},
        {**BUFFER, "gradient_based": True},
        settings={"trainer": {"send_gradient": True}},
        variant="gradients",
        seconds=SECONDS,
    ),
    appfl(
        "fedbuff",
        "FedBuffAggregator",
        {"size": 2, "rate": 1.0},
        BUFFER,
        seconds=SECONDS,
        reason="`FedBuffAggregator.compute_steps`"
        " (`appfl/algorithm/aggregator/fedbuff_aggregator.py`) takes the server's model of the"
        " moment off an upload, unless `gradient_based` is set. The paper has the update since the"
        " model that the client was given. If the server has made a step meanwhile, the upload"
        " takes a part of it back. (With `gradient_based`, and `send_gradient` of the trainer, the"
        " two are equal: the variant `gradients`.)",
        mend="Keep the model that a client was given, as `client_step` keeps its version, and take"
        " this one off; or make `gradient_based` the default.",
        explanation=Explanation(
            "the server's model of the moment is taken off on our side",
            change="update-from-the-servers-model",
        ),
    ),
)


UNPLAYED = (
    (
        "pfl",
        "`GaussianMechanism` with noise",
        "the random numbers are others. Clipping, which comes before, is compared. flbench has no"
        " `Reptile`, no adaptive mu of FedProx, no trees and no Gaussian mixtures.",
    ),
    (
        "flgo",
        "`standalone`",
        "it cannot be imported. `flgo/algorithm/standalone.py` imports `utils.submodule` and"
        " `utils.pdmodule`, which are names of another project. To mend it: import `submodule` from"
        " `flgo.utils`, and add `pdmodule`, which the package does not have.",
    ),
    (
        "flgo",
        "`decentralized`",
        "a client averages its neighbours' models, then trains; in `dpsgd` it trains, then"
        " averages, so models are half a round apart. And `BasicProtocol.set_topology` cannot be"
        " called: `len(self.num_clients)` is a TypeError. To mend it: `range(self.num_clients)`.",
    ),
    (
        "flgo",
        "personalised and clustered methods other than `ditto`",
        "they are not in the package: `flgo.download_resource` loads them from the authors'"
        " repository. flbench has no `fedfa`, `fedfv`, `fedmgda`, `fedspeed`, `mifa` and `TiFL`.",
    ),
    (
        "appfl",
        "the servers of `appfl.algorithm.legacy`, such as `ServerFedAvg`",
        "the authors have replaced them with the aggregators that are compared. flbench has none"
        " of the methods of the other aggregators, such as `FedCompassAggregator` and"
        " `IIADMMAggregator`.",
    ),
    (
        "fedlab",
        "`DittoSerialClientTrainer`, `IFCASerialClientTrainer`",
        "they cannot be run. `local_process` (`fedlab/contrib/algorithm/ditto.py`, `ifca.py`) calls"
        " the module `tqdm` as a function, which is a TypeError, and then methods that no class has"
        " (`_train_alone`, `_get_dataloader`); and `payload[1:0]` of IFCA is always empty. To mend"
        " it: `from tqdm import tqdm`, `self.dataset.get_dataloader`, `self.train`, `payload[1:]`.",
    ),
    (
        "flwr",
        "`FedProx`",
        "its server is that of `FedAvg`, and its proximal term is left to users: the same code"
        " would be on both sides.",
    ),
    (
        "cfla",
        "`ServerFedGroup`",
        "it groups clients by the cosine of their whole models"
        " (`cfla/framework/server/server_fedgroup.py`), the paper by their updates, projected on"
        " the first singular vectors: another method.",
    ),
)
"""Framework, class, and why it is not compared."""


def find(framework: str, method: str) -> list[Pair]:
    """The pairs of a framework and a method, in the order of `PAIRS`."""
    return [one for one in PAIRS if (one.framework, one.method) == (framework, method)]
